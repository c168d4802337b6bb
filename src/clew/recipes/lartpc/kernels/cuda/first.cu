// The first block: one number per pixel in, up to 16 channels out, on listed cells.
//
// A product uses one row of the windows, 8 columns of 8 cells. K is the column. One load of a window serves all 25
// convolutions, because the weights are shifted instead. The convolutions of the last column of a cell start at
// column 4. They use columns 4 to 11, of which 4 to 8 exist.

// `taps` (25, 32, 2): for row ky and convolution column px, 16 outputs x 8 window columns, by lane.
extern "C" __global__ void __launch_bounds__(128, 3)
    first_forward(const u16* image, const int* listed, const int* count, const uint2* taps, const float* bias, u16* y,
                  u8* winner, int height, int width, int outputs) {
    int lane = lane_of_warp(), g = lane >> 2, t = lane & 3, number = *count;
    int rows = height / POOL, columns = width / POOL;
    u32 weight[PLACES][2];
#pragma unroll
    for (int i = 0; i < PLACES; i++) {
        uint2 both = taps[i * 32 + lane];
        weight[i][0] = both.x, weight[i][1] = both.y;
    }
    float bias0 = g < outputs ? bias[g] : 0.f, bias1 = g + 8 < outputs ? bias[g + 8] : 0.f;
    int warps = gridDim.x * (blockDim.x >> 5), tiles = (number + 7) >> 3;
    for (int tile = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5); tile < tiles; tile += warps) {
        bool there = tile * 8 + g < number;
        int place = listed[there ? tile * 8 + g : number - 1];
        Cell cell = cell_at(place, rows, columns);
        int left = POOL * cell.column - 2 + 2 * t, above = POOL * cell.row - 2;
        bool in0 = within(left, width), in1 = within(left + 1, width), in8 = t == 2 && within(left + 4, width);
        const u16* from = image + (static_cast<long long>(cell.event) * height + above) * width + left;
        u32 near[WINDOW], far[WINDOW];
#pragma unroll
        for (int r = 0; r < WINDOW; r++) {
            const u16* line = from + static_cast<long long>(r) * width;
            bool in = within(above + r, height);
            u32 one = in && in0 ? line[0] : 0, two = in && in1 ? line[1] : 0;
            far[r] = in && in8 ? line[4] : 0;  // column 8
            near[r] = one | two << 16;
        }
        float sums[PLACES][4];
        clear(sums);
#pragma unroll
        for (int r = 0; r < WINDOW; r++) {
            u32 shifted = from_lane_below(near[r], 2);
            u32 late = t < 2 ? shifted : far[r];
#pragma unroll
            for (int py = 0; py < POOL; py++) {
                int ky = r - py;
                if (ky < 0 || ky >= POOL) continue;
#pragma unroll
                for (int px = 0; px < POOL; px++)
                    multiply8(sums[py * POOL + px], weight[ky * POOL + px], px < 4 ? near[r] : late);
            }
        }
        keep_largest(sums, bias0, bias1, there ? place : -1, 16, 0, y, winner);
    }
}

// Adds the input of winners times the gradient before ELU to `dtaps` (outputs, 25), and that gradient to `dbias`.
// `gradient`, `y` and `winner` have 16 channels per cell. Only listed cells of `gradient` are read.
extern "C" __global__ void __launch_bounds__(128, 2)
    first_learn(const u16* image, const int* listed, const int* count, const u16* gradient, const u16* y,
                const u8* winner, float* dtaps, float* dbias, int height, int width, int outputs) {
    __shared__ float shared_taps[16 * PLACES + 16];
    int lane = lane_of_warp(), g = lane >> 2, t = lane & 3, number = *count;
    int rows = height / POOL, columns = width / POOL;
    for (int i = threadIdx.x; i < 16 * PLACES + 16; i += blockDim.x) shared_taps[i] = 0.f;
    __syncthreads();
    float sums[PLACES][4], total[2] = {0.f, 0.f};
    clear(sums);
    int warps = gridDim.x * (blockDim.x >> 5), tiles = (number + 15) >> 4;
    for (int tile = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5); tile < tiles; tile += warps) {
        u32 seen[WINDOW][2][2], inner[4] = {0, 0, 0, 0}, won[4] = {0, 0, 0, 0};
#pragma unroll
        for (int r = 0; r < WINDOW; r++) seen[r][0][0] = seen[r][0][1] = seen[r][1][0] = seen[r][1][1] = 0;
#pragma unroll
        for (int k = 0; k < 4; k++) {  // cells 2t, 2t + 1, 2t + 8, 2t + 9 of the tile
            int half = k >> 1, shift = (k & 1) * 16, slot = tile * 16 + 8 * half + 2 * t + (k & 1);
            bool there = slot < number;
            int place = listed[there ? slot : number - 1];
            Cell cell = cell_at(place, rows, columns);
#pragma unroll
            for (int q = 0; q < 2; q++) {
                long long at = static_cast<long long>(place) * 16 + g + 8 * q;
                bool counts = there && g + 8 * q < outputs;
                float value = counts ? wide(gradient[at]) * slope(wide(y[at])) : 0.f;
                total[q] += value;
                inner[half * 2 + q] |= (pair(value, 0.f) & 0xffffu) << shift;
                won[half * 2 + q] |= (0x3c00u | winner[at]) << shift;
            }
            int x = POOL * cell.column - 2 + g, above = POOL * cell.row - 2;
            bool in0 = there && within(x, width), in4 = there && g < POOL && within(x + 4, width);
            const u16* from = image + (static_cast<long long>(cell.event) * height + above) * width + x;
#pragma unroll
            for (int r = 0; r < WINDOW; r++) {
                const u16* line = from + static_cast<long long>(r) * width;
                bool in = within(above + r, height);
                u32 one = in && in0 ? line[0] : 0, two = in && in4 ? line[4] : 0;
                seen[r][0][half] |= one << shift;
                seen[r][1][half] |= two << shift;
            }
        }
#pragma unroll
        for (int place = 0; place < PLACES; place++) {
            int py = place / POOL, px = place % POOL;
            u32 of_winners[4];
#pragma unroll
            for (int i = 0; i < 4; i++) of_winners[i] = inner[i] & equal(won[i], code(place));
#pragma unroll
            for (int ky = 0; ky < POOL; ky++)
                multiply16(sums[ky * POOL + px], of_winners, seen[py + ky][px == 4][0], seen[py + ky][px == 4][1]);
        }
    }
#pragma unroll
    for (int i = 0; i < PLACES; i++)
#pragma unroll
        for (int k = 0; k < 4; k++) {
            int px = i % POOL, kx = 2 * t + (k & 1) - (px < 4 ? px : 0), output = g + 8 * (k >> 1);
            if (kx >= 0 && kx < POOL) add(&shared_taps[output * PLACES + i - px + kx], sums[i][k]);
        }
    add(&shared_taps[16 * PLACES + g], total[0]);
    add(&shared_taps[16 * PLACES + g + 8], total[1]);
    __syncthreads();
    for (int i = threadIdx.x; i < outputs * PLACES; i += blockDim.x) add(dtaps + i, shared_taps[i]);
    if (threadIdx.x < outputs) add(dbias + threadIdx.x, shared_taps[16 * PLACES + threadIdx.x]);
}
