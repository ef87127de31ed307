/* checkpoint/checkpoint_api.h - save from any layout, load into any other */
#ifndef CDP_SRC_CHECKPOINT_CHECKPOINT_API_H
#define CDP_SRC_CHECKPOINT_CHECKPOINT_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../os/os_api.h"
#include "../group/group_api.h"
#include "../dtensor/item_api.h"

#define CDP_CKPT_LATEST UINT64_MAX /* in place of a step: the newest complete one */

/* Bytes of the program, such as its random state. */
typedef struct cdp_ckpt_blob {
    const char *name; /* as the name of an item; unique among blobs and items */
    void *data;
    uint64_t bytes; /* that are saved; loading sets how many there were */
    uint64_t room;  /* for loading: most bytes that `data` can take */
    /* each rank has its own: a rank that the saved job did not have gets none (bytes 0). Else rank
       0's bytes are saved, and every rank gets them */
    bool per_rank;
} cdp_ckpt_blob;

typedef struct cdp_ckpt_desc {
    cdp_group *group; /* it must outlive the cdp_ckpt */
    const char *path; /* a folder that all ranks see, made if it is missing; copied */
    /* The same on all ranks, in one order. Kept: layouts and pointers are read at each call. */
    const cdp_item *items;
    uint32_t item_count;
    cdp_ckpt_blob *blobs; /* kept */
    uint32_t blob_count;
    uint64_t file_bytes; /* a file takes tensors up to so many bytes, or one (default: 5 GB) */
    uint32_t keep;       /* how many of the newest steps stay (default: all) */
    uint64_t keep_every; /* steps that are multiples of it stay, too (default: none) */
    uint64_t
        stage_bytes;  /* cdp_ckpt_save_async: most memory for copies; a call that needs more waits
                             until the rest is written, and in frames all ranks write in the call
                             (default: what this rank writes) */
    bool late;        /* cdp_ckpt_save_async copies nothing: see there */
    bool no_sync;     /* faster; a power cut may lose steps that were saved, older ones too */
    bool no_rename;   /* save: for file systems that cannot rename a folder, or only by copying it:
                         files have their final names from the start, and checkpoint.json, which is
                         written last, makes the step exist. One that is cut or damaged counts as
                         not finished: the next save of this step removes the rest. A rank that
                         still writes after a failed save must end before the step is saved anew */
    bool incremental; /* save: a file whose tensors all have the sums that they have in the newest
                         step is linked, or copied where links fail, or where that step is
                         removed meanwhile (up to 64 files of it), not written; the call reads
                         all that this rank would write. Of the older file only name and length
                         are compared: remove a newest step that is damaged before you save */
    bool no_verify;   /* load: do not compare sums, nor count who holds which element */
    bool partial;     /* load: items and blobs that are missing in the files keep their values */
    bool cast;        /* load: elements of another dtype are converted as cdp_convert() does, and
                         rounded once; sums are those of what the files have */
    double disk_bytes_per_us; /* that the disk takes from all ranks together, synced, in MB/s; for
                                 predicted_us alone (default: 750) */
    const cdp_os *os;         /* whose files are used; it must outlive the cdp_ckpt (default: the
                            group's) */
    /* May be NULL. Called by the thread that saves or loads, after each piece of at most 8 MiB:
       bytes of this rank that are done, of all that it will write or read. cdp_ckpt_save_async()
       has a thread of its own, except in frames. */
    void (*progress)(void *user, uint64_t done, uint64_t total);
    void *user;
} cdp_ckpt_desc;

typedef struct cdp_ckpt cdp_ckpt;

/* What the last save or load of this rank did. */
typedef struct cdp_ckpt_info {
    uint64_t step;
    uint64_t bytes_written, bytes_read; /* of tensors, by this rank; bytes_read: from files, more
                                           than it needs where short gaps are read, too */
    uint64_t total_bytes;               /* of all tensors, each once */
    uint64_t files;                     /* with tensors */
    uint64_t writes, reads;             /* calls of the os */
    uint64_t write_ns, sync_ns, commit_ns, read_ns;
    uint64_t stage_bytes, stall_ns; /* cdp_ckpt_save_async: bytes that were copied; how long its
                                       call, cdp_ckpt_staged() and cdp_ckpt_wait() took together */
    uint32_t missing, surplus; /* load: items that the files lack; tensors that nobody asked for */
    uint32_t cast;             /* load: items that were converted */
    double predicted_us;       /* save and preview: time that the disk needs for the tensors that
                                  are written, by desc.disk_bytes_per_us */
    uint64_t linked_files;     /* incremental: with tensors, that have not changed */
    uint64_t linked_bytes;     /* of their tensors, each once; what ranks write is the rest */
} cdp_ckpt_info;

/* Prepare to save and load. Local. Errors: INVALID (the text names the member), UNSUPPORTED (an os
   without files that can be synced; a big-endian machine), NOMEM. */
CDP_MUST_CHECK CDP_API cdp_status cdp_ckpt_create(const cdp_ckpt_desc *desc, cdp_ckpt **out);
/* Local. Waits for a save in the background, whose result is lost. NULL is allowed. A second
   destroy does nothing, nor does that of a child of fork(); other calls are STATE then, and after
   the group was destroyed, too. */
CDP_API void cdp_ckpt_destroy(cdp_ckpt *ckpt);

/* Save all items and blobs as `step`, durably: after CDP_OK it survives crashes and power cuts.
   Collective; all ranks return the same status and text. Older steps beyond `keep` are removed
   afterwards. A save that fails leaves the group and all older steps as they were; an error other
   than INVALID and MISMATCH does not prove that the step is absent. Errors: INVALID (the step
   exists; a name that is empty, too long, not UTF-8, or there twice; a PARTIAL tensor; an item that
   ranks hold twice on different meshes, or not at all), UNSUPPORTED (a dtype that safetensors does
   not have), MISMATCH (items of two ranks differ: the text names the item and both), BUSY (another
   job saves there), IO (rank, file and errno: disk full, read-only, a folder that another rank does
   not see), NOMEM, or the group's failure. */
CDP_MUST_CHECK CDP_API cdp_status cdp_ckpt_save(cdp_ckpt *ckpt, uint64_t step);

/* Like cdp_ckpt_save(), but files are written after the call has returned: by a thread, over a
   group of its own, so that the program may communicate meanwhile; or, where the os has no threads
   or the group has no_thread, in frames: cdp_ckpt_wait(ckpt, 0) then makes one step of at most 8
   MiB. When it returns, the program may change items and blobs: what this rank writes was copied.
   With `late` nothing was copied: the program leaves the memory of items alone until it has called
   cdp_ckpt_staged(), for example before the optimizer writes; blobs were copied. Layouts,
   pointers and blobs are read in the call alone. OK: the save has begun. Collective; all ranks
   return the same status and text, but for TIMEOUT. Errors: those of cdp_ckpt_save() up to
   MISMATCH; how an earlier save ended, if cdp_ckpt_wait() has not said so: then nothing has begun;
   BUSY (an earlier one is still being written); TIMEOUT as for cdp_ckpt_staged(); the group's
   failure. */
CDP_MUST_CHECK CDP_API cdp_status cdp_ckpt_save_async(cdp_ckpt *ckpt, uint64_t step);

/* With `late`: after OK the program may change the memory of items. Copies what is not written yet,
   which is nothing if writing fits into a forward and a backward pass. Local; OK at once if there
   is no save. A save that failed is no error here: cdp_ckpt_wait() and the next collective call say
   so. Errors: TIMEOUT (memory or stage_bytes are too small for the copy, and the rest was not
   written within the timeout of the group; call it again). */
CDP_MUST_CHECK CDP_API cdp_status cdp_ckpt_staged(cdp_ckpt *ckpt);

/* Wait for a save in the background, at most so long. OK: its step is durable, or there is none;
   PENDING: it goes on; or why it failed: what cdp_ckpt_save() would have returned, the same on all
   ranks. Local; a rank that does not call it learns the failure from its next collective call.
   Without threads it is this call that writes. */
CDP_MUST_CHECK CDP_API cdp_status cdp_ckpt_wait(cdp_ckpt *ckpt, uint32_t timeout_ms);

/* Load a step (CDP_CKPT_LATEST: the newest complete one) into the items and blobs, in whatever
   layout they have now. `path` (NULL: the desc's): a folder of steps, or one step, or files of
   safetensors with their folder, as Hugging Face has them, or one such file, or a folder that
   torch.distributed.checkpoint has written, where everything that is no tensor is a blob: the bytes
   of an archive of torch.save(). *found (may be NULL) becomes the step (0 where the files have
   none). Collective; all ranks return the same status and text. On an error items may hold
   anything. Errors: STATE (there is no such step; nothing was changed), MISMATCH (nothing was
   changed; lists what is missing, and every item whose shape or dtype is another one, but for
   `cast`), IO (rank, file, errno; with EBADMSG: a sum is wrong, the text names tensor and elements,
   or a file is not what it should be), INVALID (as for saving; a blob is larger than its room),
   UNSUPPORTED, NOMEM, or the group's failure. */
CDP_MUST_CHECK CDP_API cdp_status cdp_ckpt_load(
    cdp_ckpt *ckpt, const char *path, uint64_t step, uint64_t *found);

/* Local. */
CDP_API cdp_ckpt_info cdp_ckpt_info_of(const cdp_ckpt *ckpt);

/* What a save would write, without writing: set total_bytes, files, predicted_us and, as
   `bytes_written` and `writes`, what this rank would do; `incremental` counts for nothing. Local,
   also for items on a mesh on paper; without a group, items without a mesh count as this rank's.
   Errors: INVALID, UNSUPPORTED, NOMEM. */
CDP_MUST_CHECK CDP_API cdp_status cdp_ckpt_preview(const cdp_ckpt_desc *desc, cdp_ckpt_info *out);

#endif /* CDP_SRC_CHECKPOINT_CHECKPOINT_API_H */
