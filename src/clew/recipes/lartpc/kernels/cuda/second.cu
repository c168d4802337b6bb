// A block of up to 16 channels in and any multiple of 16 out, on listed cells. Positions of x have 16 channels, unused
// ones are zero. K is the channel, in the order in which a lane reads four at once: 4t, 4t + 1, then 4t + 2, 4t + 3.

// A warp processes 16 outputs of 8 cells. The weights and sums of 25 convolutions stay in registers, and every position
// of the window is read once. `taps` (outputs / 16, 25, 32, 4) by lane.
extern "C" __global__ void __launch_bounds__(128, 2)
    second_forward(const u16* x, const int* listed, const int* count, const uint4* taps, const float* bias, u16* y,
                   u8* winner, int height, int width, int outputs) {
    int lane = lane_of_warp(), g = lane >> 2, t = lane & 3, group = threadIdx.x >> 5, number = *count;
    int rows = height / POOL, columns = width / POOL;
    u32 weight[PLACES][4];
#pragma unroll
    for (int i = 0; i < PLACES; i++) {
        uint4 all = taps[(group * PLACES + i) * 32 + lane];
        weight[i][0] = all.x, weight[i][1] = all.y, weight[i][2] = all.z, weight[i][3] = all.w;
    }
    int tiles = (number + 7) >> 3;
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        bool there = tile * 8 + g < number;
        int place = listed[there ? tile * 8 + g : number - 1];
        Cell cell = cell_at(place, rows, columns);
        int left = POOL * cell.column - 2, above = POOL * cell.row - 2;
        const u16* from = x + ((static_cast<long long>(cell.event) * height + above) * width + left) * 16 + 4 * t;
        float sums[PLACES][4];
        clear(sums);
#pragma unroll
        for (int r = 0; r < WINDOW; r++) {
            uint2 seen[WINDOW];
#pragma unroll
            for (int s = 0; s < WINDOW; s++) {
                seen[s].x = seen[s].y = 0;
                if (within(above + r, height) && within(left + s, width))
                    seen[s] = *reinterpret_cast<const uint2*>(from + (r * width + s) * 16);
            }
#pragma unroll
            for (int s = 0; s < WINDOW; s++)
#pragma unroll
                for (int py = 0; py < POOL; py++) {
                    int ky = r - py;
                    if (ky < 0 || ky >= POOL) continue;
#pragma unroll
                    for (int px = 0; px < POOL; px++) {
                        int kx = s - px;
                        if (kx < 0 || kx >= POOL) continue;
                        multiply16(sums[py * POOL + px], weight[ky * POOL + kx], seen[s].x, seen[s].y);
                    }
                }
        }
        const float* own = bias + group * 16 + g;
        keep_largest(sums, own[0], own[8], there ? place : -1, outputs, group * 16, y, winner);
    }
}

// Writes the gradient of x in listed squares of 5 x 5 positions to dx (16 channels per position), and adds its sum over
// active positions to `total` (16,). A warp processes 8 squares, 16 outputs at a time. All weights are in shared memory:
// outputs / 16 * 25 * 32 * 16 bytes. `taps` (outputs / 16, 25, 32, 4): rows are channels, K is the output.
extern "C" __global__ void __launch_bounds__(128, 2)
    second_return(const u16* inner, const u8* winner, const u8* active, const int* listed, const int* count,
                  const uint4* taps, u16* dx, float* total, int height, int width, int outputs) {
    DYNAMIC(uint4, shared_taps);
    int lane = lane_of_warp(), g = lane >> 2, t = lane & 3, groups = outputs / 16;
    int number = *count, rows = height / POOL, columns = width / POOL;
    int down = (height + POOL - 1) / POOL, across = (width + POOL - 1) / POOL;
    for (int i = threadIdx.x; i < groups * PLACES * 32; i += blockDim.x) shared_taps[i] = taps[i];
    __syncthreads();
    float totals[4] = {0.f, 0.f, 0.f, 0.f};
    int warps = gridDim.x * (blockDim.x >> 5), tiles = (number + 7) >> 3;
    for (int tile = blockIdx.x + (threadIdx.x >> 5) * gridDim.x; tile < tiles; tile += warps) {
        bool there = tile * 8 + g < number;
        Cell square = cell_at(listed[there ? tile * 8 + g : number - 1], down, across);
        float sums[PLACES][4];
        clear(sums);
#pragma unroll 1
        for (int group = 0; group < groups; group++) {
            u32 weight[PLACES][4];
#pragma unroll
            for (int i = 0; i < PLACES; i++) {
                uint4 all = shared_taps[(group * PLACES + i) * 32 + lane];
                weight[i][0] = all.x, weight[i][1] = all.y, weight[i][2] = all.z, weight[i][3] = all.w;
            }
            uint2 gradient[3];
            u32 won0[3], won1[3];
#pragma unroll
            for (int r = 0; r < WINDOW; r++) {
                if (r == 0 || r == 2 || r == 7) {  // the window enters the cells above, here, below
                    int row = square.row + (r == 0 ? -1 : r == 2 ? 0 : 1);
#pragma unroll
                    for (int side = 0; side < 3; side++) {
                        int column = square.column + side - 1;
                        gradient[side].x = gradient[side].y = 0;
                        u32 four = 0;
                        if (within(row, rows) && within(column, columns)) {
                            long long cell = (static_cast<long long>(square.event) * rows + row) * columns + column;
                            long long at = cell * outputs + group * 16 + 4 * t;
                            gradient[side] = *reinterpret_cast<const uint2*>(inner + at);
                            four = *reinterpret_cast<const u32*>(winner + at);
                        }
                        won0[side] = 0x3c003c00u | (four & 0xffu) | (four & 0xff00u) << 8;
                        won1[side] = 0x3c003c00u | (four >> 16 & 0xffu) | (four >> 24) << 16;
                    }
                }
#pragma unroll
                for (int s = 0; s < WINDOW; s++) {
                    const int side = s < 2 ? 0 : s < 7 ? 1 : 2;
                    const u32 own = code((r + 3) % POOL * POOL + (s + 3) % POOL);
                    u32 b0 = gradient[side].x & equal(won0[side], own), b1 = gradient[side].y & equal(won1[side], own);
#pragma unroll
                    for (int qy = 0; qy < POOL; qy++) {
                        if (r - qy < 0 || r - qy >= POOL) continue;
#pragma unroll
                        for (int qx = 0; qx < POOL; qx++) {
                            if (s - qx < 0 || s - qx >= POOL) continue;
                            multiply16(sums[qy * POOL + qx], weight[PLACES - 1 - (r - qy) * POOL - (s - qx)], b0, b1);
                        }
                    }
                }
            }
        }
#pragma unroll
        for (int i = 0; i < PLACES; i++) {
            u32 near = transposed(pair(sums[i][0], sums[i][1])), far = transposed(pair(sums[i][2], sums[i][3]));
            int y = POOL * square.row + i / POOL, x = POOL * square.column + i % POOL;
            if (!there || y >= height || x >= width) continue;
            long long at = (static_cast<long long>(square.event) * height + y) * width + x;
            *reinterpret_cast<u32*>(dx + at * 16 + 2 * t) = near;
            *reinterpret_cast<u32*>(dx + at * 16 + 2 * t + 8) = far;
            if (active[at]) {
                totals[0] += low(near), totals[1] += high(near);
                totals[2] += low(far), totals[3] += high(far);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float sum = totals[i];
#pragma unroll
        for (int by = 4; by < 32; by <<= 1) sum += from_lane_across(sum, by);
        if (g == 0) add(total + 2 * t + (i & 1) + 8 * (i >> 1), sum);
    }
}

// Adds the input of winners times `inner`, the gradient before ELU, to `dtaps` (25, outputs, 16). The windows of 16
// cells are in shared memory, and the next ones are loaded while these are used: 4 * 16 * 81 * 16 bytes. K is the cell.
// A warp processes 16 outputs and 8 channels.
const int WINDOWS = 16 * WINDOW * WINDOW;
extern "C" __global__ void __launch_bounds__(256, 1)
    second_learn(const u16* x, const int* listed, const int* count, const u16* inner, const u8* winner, float* dtaps,
                 int height, int width, int outputs) {
    DYNAMIC(uint4, windows);
    int lane = lane_of_warp(), g = lane >> 2, t = lane & 3, warp = threadIdx.x >> 5, groups = outputs / 16;
    int group = warp % groups, half = warp / groups, number = *count, rows = height / POOL, columns = width / POOL;
    int tiles = (number + 15) >> 4, share = blockDim.x >> 4;
    auto load = [&](int tile, int buffer) {
        int own = threadIdx.x / share, slot = tile * 16 + own;
        bool there = slot < number;
        Cell cell = cell_at(there ? listed[slot] : 0, rows, columns);
        int left = POOL * cell.column - 2, above = POOL * cell.row - 2;
        const u16* from = x + ((static_cast<long long>(cell.event) * height + above) * width + left) * 16;
        uint4* to = windows + buffer * 2 * WINDOWS + own * WINDOW * WINDOW;
        for (int i = threadIdx.x % share; i < 2 * WINDOW * WINDOW; i += share) {
            int part = i & 1, place = i >> 1, r = place / WINDOW, s = place % WINDOW;
            bool in = there && within(above + r, height) && within(left + s, width);
            fetch(to + part * WINDOWS + place, in ? from + (r * width + s) * 16 + part * 8 : x, in);
        }
    };
    float sums[PLACES][4];
    clear(sums);
    int buffer = 0;
    if (static_cast<int>(blockIdx.x) < tiles) load(blockIdx.x, 0);
    fetched();
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x, buffer ^= 1) {
        int next = tile + gridDim.x;
        if (next < tiles) load(next, buffer ^ 1);
        fetched();
        u32 gradient[4] = {0, 0, 0, 0}, won[4] = {0, 0, 0, 0};
#pragma unroll
        for (int k = 0; k < 4; k++) {  // cells 2t, 2t + 1, 2t + 8, 2t + 9 of the tile
            int slot = tile * 16 + 8 * (k >> 1) + 2 * t + (k & 1), shift = (k & 1) * 16;
            bool there = slot < number;
            long long at = static_cast<long long>(there ? listed[slot] : 0) * outputs + group * 16 + g;
#pragma unroll
            for (int q = 0; q < 2; q++) {
                u32 value = there ? inner[at + 8 * q] : 0;
                gradient[(k >> 1) * 2 + q] |= value << shift;
                won[(k >> 1) * 2 + q] |= (0x3c00u | winner[at + 8 * q]) << shift;
            }
        }
        u32 of_winners[PLACES][4];
#pragma unroll
        for (int place = 0; place < PLACES; place++)
#pragma unroll
            for (int i = 0; i < 4; i++) of_winners[place][i] = gradient[i] & equal(won[i], code(place));
        await_all_but_last();
        __syncthreads();
        const uint4* row = windows + (buffer * 2 + half) * WINDOWS + WINDOW * WINDOW * (lane & 15);
#pragma unroll
        for (int r = 0; r < WINDOW; r++)
#pragma unroll
            for (int s = 0; s < WINDOW; s++) {
                u32 b0, b1;
                read_columns(b0, b1, row + r * WINDOW + s);
#pragma unroll
                for (int py = 0; py < POOL; py++) {
                    if (r - py < 0 || r - py >= POOL) continue;
#pragma unroll
                    for (int px = 0; px < POOL; px++) {
                        if (s - px < 0 || s - px >= POOL) continue;
                        multiply16(sums[(r - py) * POOL + s - px], of_winners[py * POOL + px], b0, b1);
                    }
                }
            }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < PLACES; i++)
#pragma unroll
        for (int k = 0; k < 4; k++) {
            int output = group * 16 + g + 8 * (k >> 1), channel = half * 8 + 2 * t + (k & 1);
            add(dtaps + (i * outputs + output) * 16 + channel, sums[i][k]);
        }
}
