// Where an address lies: in an argument, in a variable of the kernel, between them, or nowhere.
//
// Arguments live in one arena, each between gaps as wide as itself, so an index that misses its array meets no other.
// The kernel's own variables lie in the module; each `__shared__` declaration has a gap in front (keywords.h).
#pragma once

#include <algorithm>

#include "findings.h"

namespace check {

static Address arena, arena_bytes;
static unsigned slot_bits;           // the arena is cut into slots of this size, a region in each
static std::vector<Region> regions;  // by slot
static std::vector<View> views;

static Address box, box_bytes;           // from the first to the last variable
static std::vector<Variable> variables;  // variables[0] is none
static std::vector<uint16_t> variable_of_byte;
static Address dynamic_end;

static bool inside(const View& view, Address a, unsigned size) {
    if (a < view.begin || a + size > view.end) return false;
    return (a - view.begin) % view.stride + size <= view.width;
}

// How many bytes an address misses a view by; between two rows, the shorter way to either.
static uint64_t distance_to(const View& view, Address a) {
    if (a < view.begin) return view.begin - a;
    if (a >= view.end) return a - view.end + 1;
    uint64_t in_row = (a - view.begin) % view.stride;
    return in_row < view.width ? 0 : std::min(in_row - view.width + 1, view.stride - in_row);
}

// The view that holds the access, else the one that it is nearest to.
static const View& view_of(const Region& region, Address a, unsigned size, bool* holds) {
    const View *first = &views[region.first_view], *nearest = first;
    uint64_t least = ~(uint64_t)0;
    *holds = true;
    for (const View* v = first; v < first + region.num_views; v++) {
        if (inside(*v, a, size)) return *v;
        uint64_t distance = distance_to(*v, a);
        if (distance < least) least = distance, nearest = v;
    }
    *holds = false;
    return *nearest;
}

static const Region* nearest_region(Address a) {
    const Region* nearest = nullptr;
    uint64_t least = ~(uint64_t)0;
    for (const Region& r : regions) {
        uint64_t distance = a < r.begin ? r.begin - a : a >= r.end ? a - r.end : 0;
        if (distance < least) least = distance, nearest = &r;
    }
    return nearest;
}

static const Variable* nearest_shared(Address a) {
    const Variable* nearest = nullptr;
    uint64_t least = ~(uint64_t)0;
    for (size_t i = 1; i < variables.size(); i++) {
        const Variable& v = variables[i];
        if (v.kind == kGapZone || v.kind == kDevice) continue;
        Address end = v.kind == kDynamic ? dynamic_end : v.begin + v.size;
        uint64_t distance = a < v.begin ? v.begin - a : a >= end ? a - end : 0;
        if (distance < least) least = distance, nearest = &v;
    }
    return nearest;
}

static inline bool is_quiet(Address a) {
    if ((a >= stacks_begin && a < stacks_end) || (a >= module_base && a < module_end)) return true;
    for (size_t i = 0; i < quiet.size(); i += 2)
        if (a >= quiet[i] && a < quiet[i + 1]) return true;
    return false;
}

static void name_argument(Finding* f, Address a) {
    const Region* region = nearest_region(a);
    if (!region || !region->num_views) return;
    bool holds;
    const View& view = view_of(*region, a, f->size ? f->size : 1, &holds);
    f->argument = view.argument;
    f->offset = (int64_t)(a - view.begin);
}

static void name_variable(Finding* f, const Variable& v, Address a) {
    f->variable = (int32_t)v.number;
    f->offset = (int64_t)(a - v.begin);
}

}  // namespace check
