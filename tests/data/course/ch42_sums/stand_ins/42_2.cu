// tests/data/course/ch42_sums/stand_ins/42_2.cu: another way for exercise 42.2.
if (threadIdx.x == 0) {
    int c = 0;
    while (c < columns) {
        y[c] = x[c] * factor + 1.0f;
        c += 1;
    }
}
