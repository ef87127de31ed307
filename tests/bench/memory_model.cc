// A model of the structures that PyTorch's caching allocator rests on, for comparison: an ordered set of free blocks by
// (stream, size, address), a table of blocks in 67 shards with a lock each, one recursive mutex. Addresses are numbers.
#include <cstdint>
#include <mutex>
#include <set>
#include <unordered_map>

namespace {
struct block {
    uint64_t at, size, stream;
    bool used;
    block *prev, *next;
};
struct order {
    bool operator()(const block *a, const block *b) const {
        if (a->stream != b->stream) return a->stream < b->stream;
        if (a->size != b->size) return a->size < b->size;
        return a->at < b->at;
    }
};
struct shard {
    std::mutex lock;
    std::unordered_map<uint64_t, block *> blocks;
};
struct stat {
    uint64_t current, peak, allocated, freed;
};
std::recursive_mutex lock;
std::set<block *, order> small_blocks, large_blocks;
shard shards[67];
stat stats[5][3];
uint64_t next_at = 1ull << 40, segments;

std::set<block *, order> &pool_of(uint64_t size) { return size <= 1048576 ? small_blocks : large_blocks; }
shard &shard_of(uint64_t at) { return shards[(at >> 9) % 67]; }
void count(int which, uint64_t size, uint64_t by) {
    for (int i : {0, size <= 1048576 ? 1 : 2}) {
        stat &s = stats[which][i];
        s.current += by;
        if ((int64_t)by > 0) s.allocated += by;
        else s.freed -= by;
        if (s.current > s.peak) s.peak = s.current;
    }
}
} // namespace

extern "C" uint64_t model_segments(void) { return segments; }

extern "C" void *model_alloc(uint64_t bytes) {
    std::lock_guard<std::recursive_mutex> hold(lock);
    const uint64_t size = bytes < 512 ? 512 : (bytes + 511) / 512 * 512;
    auto &pool = pool_of(size);
    block key = {0, size, 0, false, nullptr, nullptr}, *b;
    auto it = pool.lower_bound(&key);
    if (it != pool.end()) {
        b = *it;
        pool.erase(it);
    } else {
        const uint64_t segment = size <= 1048576 ? 2097152 : size < 10485760 ? 20971520 : (size + 2097151) / 2097152 * 2097152;
        b = new block{next_at, segment, 0, false, nullptr, nullptr};
        next_at += segment + 2097152;
        ++segments;
    }
    if (b->size - size >= (size <= 1048576 ? 512u : 1048577u)) {
        block *const rest = new block{b->at + size, b->size - size, 0, false, b, b->next};
        if (b->next) b->next->prev = rest;
        b->next = rest;
        b->size = size;
        pool.insert(rest);
    }
    b->used = true;
    for (int i = 0; i < 5; ++i) count(i, size, i % 2 ? size : 1);
    shard &s = shard_of(b->at);
    std::lock_guard<std::mutex> also(s.lock);
    s.blocks[b->at] = b;
    return (void *)b->at;
}

extern "C" void model_free(void *p) {
    block *b;
    {
        shard &s = shard_of((uint64_t)p);
        std::lock_guard<std::mutex> also(s.lock);
        auto it = s.blocks.find((uint64_t)p);
        b = it->second;
        s.blocks.erase(it);
    }
    std::lock_guard<std::recursive_mutex> hold(lock);
    auto &pool = pool_of(b->size);
    for (int i = 0; i < 5; ++i) count(i, b->size, 0 - (i % 2 ? b->size : 1));
    b->used = false;
    if (block *const n = b->next; n && !n->used) {
        pool.erase(n);
        b->size += n->size;
        b->next = n->next;
        if (b->next) b->next->prev = b;
        delete n;
    }
    if (block *const q = b->prev; q && !q->used) {
        pool.erase(q);
        q->size += b->size;
        q->next = b->next;
        if (q->next) q->next->prev = q;
        delete b;
        b = q;
    }
    pool.insert(b);
}
