/* mem/record_api.h - histories and stacks */
#ifndef CDP_SRC_MEM_RECORD_API_H
#define CDP_SRC_MEM_RECORD_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "desc_api.h"
#include "allocator_api.h"

/* Start recording, or change it; `desc` NULL or history OFF: stop and forget. Blocks that live
   already have no stacks. Errors: INVALID, UNSUPPORTED, NOMEM (recording stays as it was). */
CDP_MUST_CHECK CDP_API cdp_status cdp_mem_record(cdp_mem *mem, const cdp_mem_record_desc *desc);

/* Begin a label of this thread ("step 12", "ddp bucket 3"), which events and blocks then carry.
   Labels nest up to 16 deep, joined by "/". NULL ends the innermost one. */
CDP_API void cdp_mem_label(const char *text);

/* Record a text for this moment (`data` NULL), or for a live block. Ignored when nothing is
   recorded. */
CDP_API void cdp_mem_note(cdp_mem *mem, const void *data, const char *text);

/* Memory that others hold (a communicator, the context): shown as a segment of its own at a
   made-up address, and not in the statistics. A second call with the same label replaces the
   first; 0 bytes removes it. Errors: NOMEM. */
CDP_MUST_CHECK CDP_API cdp_status cdp_mem_external(cdp_mem *mem, const char *label, uint64_t bytes);

/* For desc.recorder_only: another allocator gave out `bytes` at `data`, or is about to take them
   back. Each block is shown as a segment of its own. Errors: INVALID (known already; not known),
   NOMEM, STATE (this allocator has a source). */
CDP_MUST_CHECK CDP_API cdp_status cdp_mem_note_alloc(
    cdp_mem *mem, const void *data, uint64_t bytes, void *stream);
CDP_MUST_CHECK CDP_API cdp_status cdp_mem_note_free(cdp_mem *mem, const void *data);

struct cdp_mem_event; /* see >>mem/shots_api */

/* For desc.recorder_only: any event of another allocator, one that has segments, frees that wait
   for streams, or failures. Members action, address, size and stream of `event` count, of OOM also
   device_free (bytes that the device has free; its address is ignored). Blocks that lie in a
   segment which was recorded before them are shown in it, between free ones.
     ALLOC, FREE_REQUESTED,   a block is given out; is freed but waits for streams; may be used
     FREE_COMPLETED           again. Without FREE_COMPLETED it is shown as one that waits.
     SEGMENT_ALLOC, _FREE     a whole segment; the latter needs address and size of the former
     SEGMENT_MAP, _UNMAP      pages of segments that grow: MAP adds them to the segment of this
                              stream that they touch, or they begin one; UNMAP takes free pages
                              away anywhere, and may leave two segments
     OOM                      a request failed
   Errors: INVALID (overlaps what is recorded; not recorded; not free; another action, which has a
   call of its own), NOMEM, STATE (this allocator has a source); nothing is recorded then. */
CDP_MUST_CHECK CDP_API cdp_status cdp_mem_note_event(
    cdp_mem *mem, const struct cdp_mem_event *event);

#endif /* CDP_SRC_MEM_RECORD_API_H */
