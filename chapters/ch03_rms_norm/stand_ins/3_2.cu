// chapters/ch03_rms_norm/stand_ins/3_2.cu: fills exercise 3.2 while another is checked; every thread reads all columns.
for (int i = 0; i < hidden; i++) {
    bool taken = (i + 7) % blockDim.x == threadIdx.x;
    sum += taken ? float(row[i]) * float(row[i]) : 0.0f;
}
