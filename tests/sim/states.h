/* states.h - the states that rpc_tables.c and rpc_waves.c have found, each once, as bytes

   The program that includes it has declared `state`, STATE_BYTES, state_bytes(), wrong() and `x`
   (bytes that hold `used` of `room`; at: where each state ends; chains: a hash table of mask + 1
   entries; count of count_room). */
#ifndef STATES_INCLUDED
#define STATES_INCLUDED

/* The number of a new state, from 1; 0: it was found before, or there is no room. */
static uint32_t state_number(state *s) {
    uint8_t bytes[STATE_BYTES];
    const uint32_t n = state_bytes(s, bytes);
    uint32_t *at = &x.chains[cdp__hash(CDP__HASH_START, bytes, n) & x.mask];
    for (; *at; at = &x.chains[((uint32_t)(at - x.chains) + 1) & x.mask])
        if (x.at[*at] - x.at[*at - 1] == n && !memcmp(x.bytes + x.at[*at - 1], bytes, n)) return 0;
    if (x.count + 2 > x.count_room || x.used + n > x.room) {
        wrong("too many states for this program");
        return 0;
    }
    memcpy(x.bytes + x.used, bytes, n);
    x.used += n;
    *at = ++x.count;
    x.at[x.count] = x.used;
    return x.count;
}

#endif /* STATES_INCLUDED */
