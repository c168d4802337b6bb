// The warp of warp.cuh on a processor: lanes are coroutines that take turns, and meet where a warp or a block must.
#include <ucontext.h>

#include <cmath>
#include <cstring>
#include <vector>

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
struct uint2 { u32 x, y; };
struct alignas(16) uint4 { u32 x, y, z, w; };
struct Index { u32 x; };

#define __global__
#define __device__
#define __shared__ static
#define __launch_bounds__(...)
#define INLINE static inline
#define DYNAMIC(type, name) type* name = reinterpret_cast<type*>(room)
#define __syncthreads() meet(the_block)

alignas(16) static unsigned char room[1 << 18];
static Index threadIdx, blockIdx, blockDim, gridDim;

struct Meeting { int size = 0, there = 0, turn = 0; };
struct Lane { ucontext_t context; std::vector<char> stack; bool done = false; };
struct Warp { Meeting meeting; u32 a[32][4], b[32][2], found[32]; const uint4* rows[32]; };
static Meeting the_block;
static std::vector<Lane> lanes;
static std::vector<Warp> warps;
static ucontext_t scheduler;
static int current;

static void rest() { swapcontext(&lanes[current].context, &scheduler); }

static void meet(Meeting& meeting) {
    int turn = meeting.turn;
    if (++meeting.there == meeting.size) {
        meeting.there = 0;
        meeting.turn++;
        return;
    }
    while (meeting.turn == turn) rest();
}

static Warp& warp() { return warps[current >> 5]; }
static int lane_of_warp() { return current & 31; }
static float bits_as_float(u32 bits) { float found; memcpy(&found, &bits, 4); return found; }
static u32 float_as_bits(float value) { u32 found; memcpy(&found, &value, 4); return found; }
static float half_of(u32 two, int which) { return bits_as_float(which ? two & 0xffff0000u : two << 16); }
static u32 rounded(float value) { u32 bits = float_as_bits(value); return (bits + 0x7fff + (bits >> 16 & 1)) >> 16; }
static u32 pair(float low, float high) { return rounded(low) | rounded(high) << 16; }
static float exponential(float x) { return expf(x); }
static void add(float* to, float value) { *to += value; }
static u32 equal(u32 a, u32 b) { return ((a ^ b) & 0xffffu ? 0 : 0xffffu) | ((a ^ b) >> 16 ? 0 : 0xffff0000u); }

static void product(float (&c)[4], const u32* a, int parts, const u32* b) {
    Warp& own = warp();
    int lane = lane_of_warp(), g = lane >> 2, t = lane & 3;
    memcpy(own.a[lane], a, parts * 8), memcpy(own.b[lane], b, parts * 4);
    meet(own.meeting);
    for (int i = 0; i < 4; i++) {
        int row = i >> 1, column = 2 * t + (i & 1);
        double sum = 0;
        for (int k = 0; k < 8 * parts; k++) {
            u32 one = own.a[g * 4 + (k % 8) / 2][(k / 8) * 2 + row], two = own.b[column * 4 + (k % 8) / 2][k / 8];
            sum += static_cast<double>(half_of(one, k & 1)) * half_of(two, k & 1);
        }
        c[i] += static_cast<float>(sum);
    }
    meet(own.meeting);
}
static void multiply16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    u32 b[2] = {b0, b1};
    product(c, a, 2, b);
}
static void multiply8(float (&c)[4], const u32 (&a)[2], u32 b) { product(c, a, 1, &b); }

static u32 transposed(u32 rows) {
    Warp& own = warp();
    int lane = lane_of_warp(), g = lane >> 2, t = lane & 3;
    own.found[lane] = rows;
    meet(own.meeting);
    auto at = [&](int row, int column) { return own.found[row * 4 + column / 2] >> 16 * (column & 1) & 0xffffu; };
    u32 found = at(2 * t, g) | at(2 * t + 1, g) << 16;
    meet(own.meeting);
    return found;
}
static u32 from_lane_below(u32 value, int by) {
    Warp& own = warp();
    int lane = lane_of_warp();
    own.found[lane] = value;
    meet(own.meeting);
    u32 found = lane + by < 32 ? own.found[lane + by] : value;
    meet(own.meeting);
    return found;
}
static float from_lane_across(float value, int by) {
    Warp& own = warp();
    own.found[lane_of_warp()] = float_as_bits(value);
    meet(own.meeting);
    float found = bits_as_float(own.found[lane_of_warp() ^ by]);
    meet(own.meeting);
    return found;
}
static void read_columns(u32& b0, u32& b1, const uint4* row) {
    Warp& own = warp();
    int lane = lane_of_warp(), g = lane >> 2, t = lane & 3;
    own.rows[lane] = row;
    meet(own.meeting);
    auto at = [&](int k) { return static_cast<u32>(reinterpret_cast<const u16*>(own.rows[k])[g]); };
    b0 = at(2 * t) | at(2 * t + 1) << 16, b1 = at(2 * t + 8) | at(2 * t + 9) << 16;
    meet(own.meeting);
}
static void fetch(uint4* to, const void* from, bool there) {
    if (there) memcpy(to, from, 16); else memset(to, 0, 16);
}
static void fetched() {}
static void await_all_but_last() {}

template <typename Body> static void run(int grid, int block, Body body) {
    static Body* now;
    now = &body;
    gridDim.x = grid, blockDim.x = block;
    for (int number = 0; number < grid; number++) {
        blockIdx.x = number;
        the_block = Meeting{block, 0, 0};
        warps.assign(block / 32, Warp{});
        for (Warp& each : warps) each.meeting.size = 32;
        lanes = std::vector<Lane>(block);
        for (Lane& each : lanes) {
            each.stack.resize(1 << 16);
            getcontext(&each.context);
            each.context.uc_stack.ss_sp = each.stack.data(), each.context.uc_stack.ss_size = each.stack.size();
            each.context.uc_link = &scheduler;
            makecontext(&each.context, +[] { (*now)(); lanes[current].done = true; }, 0);
        }
        for (int left = block; left;)
            for (current = 0; current < block; current++) {
                if (lanes[current].done) continue;
                threadIdx.x = current;
                swapcontext(&scheduler, &lanes[current].context);
                left -= lanes[current].done;
            }
    }
}
