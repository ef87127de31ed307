/*  line.h - a transport of cdp.h between two ranks that are joined by a serial line.

    The line may lose bytes and change bits. Bytes travel in frames:

        7E  header  payload  CRC-32  7E         7E and 7D inside a frame: 7D, then the byte ^ 20
        header: u16 mine, u16 yours, u8 seq, u8 ack, u8 flags, u8 rank     (little-endian)

    One frame with a payload is under way in each direction. The sender repeats it until the other
    end acknowledges it. `mine` is a random number of this run and `yours` the one that was read
    from the other end: a rank that was switched off and on again in the middle of a job is noticed,
    and bytes of an earlier run are not taken for those of this one.

    One thread. Nothing is allocated: the caller owns a `line`, about 0.7 KB. The same code runs on
    the boards and on the PC; each gives it a line_port. */
/* SPDX-License-Identifier: MIT-0 OR Unlicense */
#ifndef LINE_INCLUDED
#define LINE_INCLUDED

#include <string.h>

#define LINE_PAYLOAD 240u /* bytes; equal at both ends */
#define LINE_HEADER 8u
#define LINE_FRAME (LINE_HEADER + LINE_PAYLOAD + 4)
#define LINE_MS 1000000ull
#define LINE_AGAIN_NS (100 * LINE_MS) /* a frame that was not acknowledged is sent again */
#define LINE_LEAVE_NS (500 * LINE_MS) /* how long destroy() waits for the last acknowledgement */

/* The hardware. put and get never wait; they return how many bytes they have moved. pause returns
   when bytes came, or there is room for bytes (if `sending`), or at deadline_ns, or earlier. */
typedef struct line_port {
    void *self;
    uint32_t (*put)(void *self, const uint8_t *from, uint32_t bytes);
    uint32_t (*get)(void *self, uint8_t *to, uint32_t bytes);
    void (*pause)(void *self, bool sending, uint64_t deadline_ns);
} line_port;

enum {
    LINE_DATA = 1, /* the frame has a payload, and uses up a number */
    LINE_FLAG = 0x7e,
    LINE_ESCAPE = 0x7d,
    LINE_FLIP = 0x20
};

typedef struct line {
    line_port port;
    const cdp_os *os;
    uint32_t rank;
    uint16_t mine, yours; /* yours 0: nothing was read from the other end so far */
    bool lost;            /* the other end has started anew */

    /* what goes out: a frame, how far it was put, and what follows a 7D */
    uint8_t out[LINE_FRAME];
    uint32_t out_bytes, out_at; /* out_bytes 0: no frame is being put */
    uint8_t out_flip;
    bool out_open; /* its first 7E was put */
    /* the payload that was not acknowledged yet */
    uint8_t kept[LINE_PAYLOAD];
    uint32_t kept_bytes;
    uint8_t seq;
    bool unsent, ack_due; /* `kept` has to be put; an acknowledgement has to be put */
    uint64_t again_ns;

    /* what comes in: a frame, and a payload that cdp has not taken yet */
    uint8_t in[LINE_FRAME];
    uint32_t in_bytes;
    bool in_escape, in_bad;
    uint8_t held[LINE_PAYLOAD];
    uint32_t held_bytes, held_at;
    uint8_t expected;

    struct {
        uint32_t frames, again, broken; /* put with a payload; of these repeated; read, not valid */
    } counts;
} line;

static uint32_t line_crc(const uint8_t *p, uint32_t bytes) {
    uint32_t crc = 0xffffffffu, i, bit;
    for (i = 0; i < bytes; ++i) {
        crc ^= p[i];
        for (bit = 0; bit < 8; ++bit)
            crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
    }
    return ~crc;
}

static void line_put16(uint8_t *p, uint32_t v) {
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

static uint32_t line_get16(const uint8_t *p) {
    return p[0] | (uint32_t)p[1] << 8;
}

static uint64_t line_now(const line *l) {
    return l->os->now_ns(l->os->user);
}

/* ---- out ------------------------------------------------------------------------------------- */

/* The next frame: what was not acknowledged, if it is due, or an acknowledgement alone. */
static void line_frame(line *l) {
    const bool data = l->kept_bytes && l->yours && l->unsent;
    uint32_t bytes = LINE_HEADER, crc;
    line_put16(l->out, l->mine);
    line_put16(l->out + 2, l->yours);
    l->out[4] = l->seq;
    l->out[5] = l->expected;
    l->out[6] = data ? LINE_DATA : 0;
    l->out[7] = (uint8_t)l->rank;
    if (data) {
        memcpy(l->out + bytes, l->kept, l->kept_bytes);
        bytes += l->kept_bytes;
        ++l->counts.frames;
        l->unsent = false;
    }
    crc = line_crc(l->out, bytes);
    line_put16(l->out + bytes, crc);
    line_put16(l->out + bytes + 2, crc >> 16);
    l->out_bytes = bytes + 4;
    l->out_at = 0;
    l->out_flip = 0;
    l->out_open = false;
    l->ack_due = false;
}

/* The byte of the frame that is put next. */
static uint8_t line_next_byte(const line *l) {
    if (!l->out_open || l->out_at == l->out_bytes) return LINE_FLAG;
    if (l->out_flip) return l->out_flip;
    if (l->out[l->out_at] == LINE_FLAG || l->out[l->out_at] == LINE_ESCAPE) return LINE_ESCAPE;
    return l->out[l->out_at];
}

static void line_byte_put(line *l, uint8_t byte) {
    if (!l->out_open) {
        l->out_open = true;
    } else if (l->out_at == l->out_bytes) {
        l->out_bytes = 0;
        if (!l->yours || (l->out[6] & LINE_DATA)) l->again_ns = line_now(l) + LINE_AGAIN_NS;
    } else if (byte == LINE_ESCAPE) {
        l->out_flip = l->out[l->out_at] ^ LINE_FLIP;
    } else {
        l->out_flip = 0;
        ++l->out_at;
    }
}

/* Puts what is due and what the hardware has room for. True: it has no room for the rest. */
static bool line_pump_out(line *l) {
    if (!l->out_bytes && line_now(l) >= l->again_ns) {
        if (l->kept_bytes && !l->unsent) ++l->counts.again;
        l->unsent = l->kept_bytes != 0;
        /* the other end may wait for a sign, or may not have started when the first one was sent */
        if (!l->yours || l->unsent) l->ack_due = true;
    }
    for (;;) {
        uint8_t byte;
        if (!l->out_bytes) {
            if (!l->ack_due && !(l->unsent && l->yours)) return false;
            line_frame(l);
        }
        byte = line_next_byte(l);
        if (!l->port.put(l->port.self, &byte, 1)) return true;
        line_byte_put(l, byte);
    }
}

/* ---- in -------------------------------------------------------------------------------------- */

static void line_take_payload(line *l, uint32_t bytes) {
    if (l->in[4] != l->expected) { /* it came before, and the acknowledgement was lost */
        l->ack_due = true;
        return;
    }
    if (l->held_bytes) return; /* no room: it comes again */
    memcpy(l->held, l->in + LINE_HEADER, bytes);
    l->held_bytes = bytes;
    l->held_at = 0;
    ++l->expected;
    l->ack_due = true;
}

/* A whole frame with the right checksum. */
static void line_take_frame(line *l) {
    const uint16_t from = (uint16_t)line_get16(l->in), to = (uint16_t)line_get16(l->in + 2);
    if (l->in[7] == (uint8_t)l->rank) return; /* its own echo, or two ends with one number */
    if (l->yours && from != l->yours) l->lost = true;
    if (l->lost || (to && to != l->mine)) return; /* `to`: an earlier run of this rank */
    if (!l->yours) {
        l->yours = from;
        l->ack_due = true;
        l->again_ns = 0;
    }
    if (!to) { /* it has read nothing from here so far */
        l->ack_due = true;
        return;
    }
    if (l->kept_bytes && l->in[5] == (uint8_t)(l->seq + 1)) {
        l->kept_bytes = 0;
        l->unsent = false;
        ++l->seq;
    }
    if (l->in[6] & LINE_DATA) line_take_payload(l, l->in_bytes - LINE_HEADER - 4);
}

static void line_frame_end(line *l) {
    const uint32_t bytes = l->in_bytes;
    uint32_t crc;
    if (bytes && (l->in_bad || l->in_escape || bytes < LINE_HEADER + 4)) ++l->counts.broken;
    if (bytes >= LINE_HEADER + 4 && !l->in_bad && !l->in_escape) {
        crc = line_get16(l->in + bytes - 4) | line_get16(l->in + bytes - 2) << 16;
        if (crc == line_crc(l->in, bytes - 4))
            line_take_frame(l);
        else
            ++l->counts.broken;
    }
    l->in_bytes = 0;
    l->in_bad = false;
    l->in_escape = false;
}

static void line_byte_got(line *l, uint8_t byte) {
    if (byte == LINE_FLAG) {
        line_frame_end(l);
    } else if (byte == LINE_ESCAPE) {
        l->in_escape = true;
    } else if (l->in_bytes == LINE_FRAME) {
        l->in_bad = true;
    } else {
        l->in[l->in_bytes++] = l->in_escape ? byte ^ LINE_FLIP : byte;
        l->in_escape = false;
    }
}

/* Reads and puts what there is. True: the hardware has no room for what is to be put. */
static bool line_pump(line *l) {
    uint8_t bytes[32];
    uint32_t n, i;
    while ((n = l->port.get(l->port.self, bytes, sizeof bytes)) != 0)
        for (i = 0; i < n; ++i)
            line_byte_got(l, bytes[i]);
    return line_pump_out(l);
}

/* ---- the transport --------------------------------------------------------------------------- */

static int64_t line_lost(uint32_t peer) {
    return cdp_error_set(CDP_ERR_PEER_LOST, (int32_t)peer, 0,
        "the rank at the other end of the line has started anew");
}

static int64_t line_send(void *self, uint32_t peer, const cdp_iov *iov, uint32_t n) {
    line *l = (line *)self;
    uint32_t i, taken = 0;
    if (l->lost) return line_lost(peer);
    if (l->kept_bytes) (void)line_pump(l);
    if (l->kept_bytes) return 0;
    for (i = 0; i < n && taken < LINE_PAYLOAD; ++i) {
        const uint64_t room = LINE_PAYLOAD - taken;
        const uint32_t part = (uint32_t)(iov[i].bytes < room ? iov[i].bytes : room);
        memcpy(l->kept + taken, iov[i].data, part);
        taken += part;
    }
    l->kept_bytes = taken;
    l->unsent = taken != 0;
    (void)line_pump(l);
    return taken;
}

static int64_t line_recv(void *self, uint32_t peer, const cdp_iov *iov, uint32_t n) {
    line *l = (line *)self;
    uint32_t i;
    int64_t moved = 0;
    if (!l->held_bytes) (void)line_pump(l);
    if (!l->held_bytes && l->lost) return line_lost(peer);
    for (i = 0; i < n && l->held_bytes; ++i) {
        const uint32_t rest = l->held_bytes - l->held_at;
        const uint32_t part = (uint32_t)(iov[i].bytes < rest ? iov[i].bytes : rest);
        memcpy(iov[i].data, l->held + l->held_at, part);
        l->held_at += part;
        moved += part;
        if (l->held_at == l->held_bytes) l->held_bytes = 0;
    }
    return moved;
}

/* When there is something to put at the latest. */
static uint64_t line_until(const line *l, bool full, uint64_t deadline_ns) {
    const bool again = !full && (l->kept_bytes || !l->yours);
    return again && l->again_ns < deadline_ns ? l->again_ns : deadline_ns;
}

static cdp_status line_wait(void *self, cdp_lock *lock, uint64_t deadline_ns) {
    line *l = (line *)self;
    const uint32_t before = l->held_bytes, waits = l->kept_bytes;
    bool full = line_pump(l);
    (void)lock; /* one thread */
    if (!deadline_ns || l->held_bytes != before || l->kept_bytes != waits || l->lost) return CDP_OK;
    l->port.pause(l->port.self, full, line_until(l, full, deadline_ns));
    return CDP_OK;
}

static void line_wake(void *self) {
    (void)self; /* one thread: nobody else waits */
}

/* What was sent still arrives: waits until the other end has acknowledged it. */
static void line_destroy(void *self) {
    line *l = (line *)self;
    const uint64_t until = line_now(l) + LINE_LEAVE_NS;
    bool full = line_pump(l);
    while (!l->lost && line_now(l) < until && (full || (l->yours && l->kept_bytes))) {
        l->port.pause(l->port.self, full, line_until(l, full, until));
        full = line_pump(l);
    }
}

/* Begins a line. `l` and `os` must outlive the group that the transport is given to. */
static cdp_status line_open(
    line *l, const line_port *port, const cdp_os *os, uint32_t rank, cdp_transport *out) {
    memset(l, 0, sizeof *l);
    memset(out, 0, sizeof *out);
    l->port = *port;
    l->os = os;
    l->rank = rank;
    while (!l->mine) {
        const cdp_status st = os->random(os->user, &l->mine, sizeof l->mine);
        if (st != CDP_OK) return st;
    }
    out->self = l;
    out->send = line_send;
    out->recv = line_recv;
    out->wait = line_wait;
    out->wake = line_wake;
    out->destroy = line_destroy;
    return CDP_OK;
}

#endif
