/* base/built_with_api.h - files that were compiled with other macros do not link

   Structs and calls differ with the macros marked * in CONFIGURATION. So the function below, which
   does nothing, has them in its name, and each file that includes cdp.h refers to it. A linker that
   cannot find it says which macros the file was compiled with, and `nm` shows those of the
   implementation. Values must be spelled alike: 8 and 8u are two names. A linker that drops what is
   not used (--gc-sections) may drop the reference, too. */
#ifndef CDP_SRC_BASE_BUILT_WITH_API_H
#define CDP_SRC_BASE_BUILT_WITH_API_H

#include "config.h"

#if !defined(CDP_STATIC)
#ifdef CDP_ONLY_F32
#define CDP__WITH_ONLY_F32 _ONLY_F32
#else
#define CDP__WITH_ONLY_F32
#endif
#ifdef CDP_NO_DDP
#define CDP__WITH_NO_DDP _NO_DDP
#else
#define CDP__WITH_NO_DDP
#endif
#ifdef CDP_NO_HOOKS
#define CDP__WITH_NO_HOOKS _NO_HOOKS
#else
#define CDP__WITH_NO_HOOKS
#endif
#ifdef CDP_NO_AVERAGER
#define CDP__WITH_NO_AVERAGER _NO_AVERAGER
#else
#define CDP__WITH_NO_AVERAGER
#endif
#ifdef CDP_NO_TRACE
#define CDP__WITH_NO_TRACE _NO_TRACE
#else
#define CDP__WITH_NO_TRACE
#endif
#ifdef CDP_NO_SPARSE
#define CDP__WITH_NO_SPARSE _NO_SPARSE
#else
#define CDP__WITH_NO_SPARSE
#endif
#ifdef CDP_NO_JOIN
#define CDP__WITH_NO_JOIN _NO_JOIN
#else
#define CDP__WITH_NO_JOIN
#endif
#ifdef CDP_NO_CLIP
#define CDP__WITH_NO_CLIP _NO_CLIP
#else
#define CDP__WITH_NO_CLIP
#endif
#ifdef CDP_NO_VERIFY
#define CDP__WITH_NO_VERIFY _NO_VERIFY
#else
#define CDP__WITH_NO_VERIFY
#endif
#ifdef CDP_NO_SAMPLER
#define CDP__WITH_NO_SAMPLER _NO_SAMPLER
#else
#define CDP__WITH_NO_SAMPLER
#endif
#ifdef CDP_NO_MESSAGES
#define CDP__WITH_NO_MESSAGES _NO_MESSAGES
#else
#define CDP__WITH_NO_MESSAGES
#endif
#ifdef CDP_NO_CHANNELS
#define CDP__WITH_NO_CHANNELS _NO_CHANNELS
#else
#define CDP__WITH_NO_CHANNELS
#endif
#ifdef CDP_NO_CHAINS
#define CDP__WITH_NO_CHAINS _NO_CHAINS
#else
#define CDP__WITH_NO_CHAINS
#endif
#ifdef CDP_NO_GROUPS
#define CDP__WITH_NO_GROUPS _NO_GROUPS
#else
#define CDP__WITH_NO_GROUPS
#endif
#ifdef CDP_NO_FRAMES
#define CDP__WITH_NO_FRAMES _NO_FRAMES
#else
#define CDP__WITH_NO_FRAMES
#endif
#ifdef CDP_NO_OBJECTS
#define CDP__WITH_NO_OBJECTS _NO_OBJECTS
#else
#define CDP__WITH_NO_OBJECTS
#endif
#ifdef CDP_NO_HUB
#define CDP__WITH_NO_HUB _NO_HUB
#else
#define CDP__WITH_NO_HUB
#endif
#ifdef CDP_NO_BACKEND
#define CDP__WITH_NO_BACKEND _NO_BACKEND
#else
#define CDP__WITH_NO_BACKEND
#endif
#ifdef CDP_NO_RECORDER
#define CDP__WITH_NO_RECORDER _NO_RECORDER
#else
#define CDP__WITH_NO_RECORDER
#endif
#ifdef CDP_NO_TRAINING
#define CDP__WITH_NO_TRAINING _NO_TRAINING
#else
#define CDP__WITH_NO_TRAINING
#endif
#ifdef CDP_NO_SCAN
#define CDP__WITH_NO_SCAN _NO_SCAN
#else
#define CDP__WITH_NO_SCAN
#endif
#define CDP__GLUE(a, b, c, d, e, f) a##b##c##d##e##f
#define CDP__GLUED(a, b, c, d, e, f) CDP__GLUE(a, b, c, d, e, f)
#define CDP__WITH_SIZES \
    CDP__GLUED(_SLOTS_, CDP_SLOTS, _OF_, CDP_SLOT_BYTES, _EXPOSURES_, CDP_EXPOSURES)
#define CDP__WITH_FLAGS_1                                                                       \
    CDP__GLUED(CDP__WITH_ONLY_F32, CDP__WITH_NO_DDP, CDP__WITH_NO_HOOKS, CDP__WITH_NO_AVERAGER, \
        CDP__WITH_NO_TRACE, )
#define CDP__WITH_FLAGS_2                                                                      \
    CDP__GLUED(CDP__WITH_NO_SPARSE, CDP__WITH_NO_JOIN, CDP__WITH_NO_CLIP, CDP__WITH_NO_VERIFY, \
        CDP__WITH_NO_SAMPLER, CDP__WITH_NO_MESSAGES)
#define CDP__WITH_FLAGS_3                                                       \
    CDP__GLUED(CDP__WITH_NO_CHANNELS, CDP__WITH_NO_CHAINS, CDP__WITH_NO_GROUPS, \
        CDP__WITH_NO_FRAMES, CDP__WITH_NO_OBJECTS, CDP__WITH_NO_HUB)
#define CDP__WITH_FLAGS_4 \
    CDP__GLUED(           \
        CDP__WITH_NO_BACKEND, CDP__WITH_NO_RECORDER, CDP__WITH_NO_SCAN, CDP__WITH_NO_TRAINING, , )
#define CDP__WITH_FLAGS \
    CDP__GLUED(CDP__WITH_FLAGS_1, CDP__WITH_FLAGS_2, CDP__WITH_FLAGS_3, CDP__WITH_FLAGS_4, , )
#define cdp_built_with \
    CDP__GLUED(cdp_built_with_ERROR_TEXT_, CDP_ERROR_TEXT, CDP__WITH_SIZES, CDP__WITH_FLAGS, , )

/* Does nothing; programs need not call it. */
CDP_API void cdp_built_with(void);
static void (*const cdp__built_with)(void) CDP__KEPT = cdp_built_with;
#endif

#endif /* CDP_SRC_BASE_BUILT_WITH_API_H */
