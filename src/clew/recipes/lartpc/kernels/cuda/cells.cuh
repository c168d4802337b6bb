// Shared by all kernels: cells of 5 x 5 positions, 16-bit numbers, ELU.

const int POOL = 5;
const int PLACES = POOL * POOL;
const int WINDOW = 9;
// Rows and columns of the input of the convolutions of a cell. The window starts two positions before the cell.

struct Cell {
    int event, row, column;
};

INLINE Cell cell_at(int number, int rows, int columns) {
    int line = number / columns;
    return {line / rows, line % rows, number % columns};
}

INLINE bool within(int place, int size) { return static_cast<u32>(place) < static_cast<u32>(size); }
INLINE float wide(u32 number) { return bits_as_float(number << 16); }
INLINE float low(u32 two) { return bits_as_float(two << 16); }
INLINE float high(u32 two) { return bits_as_float(two & 0xffff0000u); }
INLINE float elu(float z) { return z > 0.f ? z : exponential(z) - 1.f; }
INLINE float slope(float y) { return y > 0.f ? 1.f : y + 1.f; }

// Small integers as numbers in half precision, for `equal`.
INLINE u32 code(u32 place) { return 0x3c003c00u | place | (place << 16); }

INLINE void clear(float (&sums)[PLACES][4]) {
#pragma unroll
    for (int i = 0; i < PLACES; i++) sums[i][0] = sums[i][1] = sums[i][2] = sums[i][3] = 0.f;
}

// Writes the ELU of the maximum of 25 convolutions (16 outputs x 8 cells) plus bias to y, and its index to winner. The
// first of equal values wins. `cell` is the cell of column g, or -1.
INLINE void keep_largest(const float (&sums)[PLACES][4], float bias0, float bias1, int cell, int stride, int first,
                         u16* y, u8* winner) {
    float best[4];
    u32 won[4];
#pragma unroll
    for (int i = 0; i < 4; i++) best[i] = sums[0][i], won[i] = 0;
#pragma unroll
    for (int place = 1; place < PLACES; place++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (sums[place][i] > best[i]) best[i] = sums[place][i], won[i] = place;
    u32 values0 = transposed(pair(elu(best[0] + bias0), elu(best[1] + bias0)));
    u32 values1 = transposed(pair(elu(best[2] + bias1), elu(best[3] + bias1)));
    u32 places0 = transposed(won[0] | won[1] << 16), places1 = transposed(won[2] | won[3] << 16);
    if (cell < 0) return;
    long long at = static_cast<long long>(cell) * stride + first + 2 * (lane_of_warp() & 3);
    *reinterpret_cast<u32*>(y + at) = values0;
    *reinterpret_cast<u32*>(y + at + 8) = values1;
    *reinterpret_cast<u16*>(winner + at) = static_cast<u16>(places0 | places0 >> 8);
    *reinterpret_cast<u16*>(winner + at + 8) = static_cast<u16>(places1 | places1 >> 8);
}
