// Warp operations of the kernels, in PTX, so that NVRTC needs no headers. 16-bit numbers are bfloat16.
//
// Lanes are counted as g = lane / 4 (0..7) and t = lane % 4. Of a product C (16 x 8) = A (16 x K) B (K x 8) a lane holds
//   C: rows g, g, g + 8, g + 8 at columns 2t, 2t + 1, 2t, 2t + 1;
//   A: row g at 2t, 2t + 1; row g + 8 at the same; with K = 16 both again at 2t + 8, 2t + 9;
//   B: column g at rows 2t, 2t + 1; with K = 16 again at 2t + 8, 2t + 9.
// The order of the K places is free as long as A and B agree on it.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;

#define INLINE __device__ __forceinline__
#define DYNAMIC(type, name)                               \
    extern __shared__ __align__(16) unsigned char room[]; \
    type* name = reinterpret_cast<type*>(room)

INLINE int lane_of_warp() { return threadIdx.x & 31; }

INLINE void multiply16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

INLINE void multiply8(float (&c)[4], const u32 (&a)[2], u32 b) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5},{%6},{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(b));
}

// Of a matrix of 8 x 8: a lane has row g at 2t, 2t + 1, and gets column g at the same.
INLINE u32 transposed(u32 rows) {
    u32 found;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0,%1;" : "=r"(found) : "r"(rows));
    return found;
}

// 16 rows of 8 numbers in shared memory, by lanes 0..15, as B of K = 16: a lane gets column g.
INLINE void read_columns(u32& b0, u32& b1, const uint4* row) {
    u32 at = static_cast<u32>(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1},[%2];" : "=r"(b0), "=r"(b1) : "r"(at));
}

// Copies 16 bytes, or zeros, to shared memory asynchronously.
INLINE void fetch(uint4* to, const void* from, bool there) {
    u32 at = static_cast<u32>(__cvta_generic_to_shared(to));
    asm volatile("cp.async.cg.shared.global [%0],[%1],16,%2;" ::"r"(at), "l"(from), "r"(there ? 16 : 0));
}
INLINE void fetched() { asm volatile("cp.async.commit_group;"); }
INLINE void await_all_but_last() { asm volatile("cp.async.wait_group 1;" ::: "memory"); }

INLINE u32 from_lane_below(u32 value, int by) { return __shfl_down_sync(~0u, value, by); }

INLINE float from_lane_across(float value, int by) { return __shfl_xor_sync(~0u, value, by); }

INLINE u32 pair(float low, float high) {
    u32 found;
    asm("cvt.rn.bf16x2.f32 %0,%1,%2;" : "=r"(found) : "f"(high), "f"(low));
    return found;
}

// Compares the two halves separately: all ones where equal. One instruction compares them as half-precision numbers.
// `code` makes such numbers from small integers.
INLINE u32 equal(u32 one, u32 other) {
    u32 found;
    asm("set.eq.u32.f16x2 %0,%1,%2;" : "=r"(found) : "r"(one), "r"(other));
    return found;
}

INLINE float bits_as_float(u32 bits) { return __uint_as_float(bits); }
INLINE float exponential(float x) { return __expf(x); }
INLINE void add(float* to, float value) { atomicAdd(to, value); }
