/* dtensor/layout_api.h - which part of a tensor each rank holds */
#ifndef CDP_SRC_DTENSOR_LAYOUT_API_H
#define CDP_SRC_DTENSOR_LAYOUT_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "mesh_api.h"

typedef enum cdp_place_kind {
    CDP_PLACE_REPLICATE = 0, /* the same on all ranks of the mesh dimension */
    CDP_PLACE_SHARD,         /* each rank holds a piece of tensor dimension `dim` */
    CDP_PLACE_PARTIAL        /* the tensor is the reduction, by `op`, of what the ranks hold */
} cdp_place_kind;

/* How one dimension of a mesh divides a tensor. */
typedef struct cdp_place {
    cdp_place_kind kind;
    int32_t dim;      /* SHARD: of the tensor; negative: counted from the end */
    cdp_reduce_op op; /* PARTIAL: SUM (default), AVG, MIN, MAX or PRODUCT */
    uint32_t order;   /* SHARD: lower ones cut first; equal ones: left to right (default) */
    uint32_t cut;     /* SHARD: of cdp_mesh_cut(); no other SHARD of that dim (default: none) */
    uint64_t block;   /* SHARD: cut only at multiples of so many elements (default: 1) */
} cdp_place;

/* A tensor's element type and shape, and how it is divided over a mesh. A plain value;
   zero-initialise it. Chunk rule: `size` elements over n ranks give pieces of c = ceil(size / n):
   rank i holds elements [c*i, c*(i+1)) as far as they exist, so the last pieces may be short or
   empty. With `block` b the rule divides ceil(size / b) blocks. If several mesh dimensions shard
   one tensor dimension, each cuts what the one before it left. Every rank holds one box of the
   tensor, contiguous and row-major. */
typedef struct cdp_layout {
    const cdp_mesh *mesh;
    cdp_dtype dtype;                 /* (default: f32) */
    uint32_t ndim;                   /* 0: a single element */
    uint64_t shape[CDP_TENSOR_DIMS]; /* of the whole tensor */
    cdp_place place[CDP_MESH_DIMS];  /* per dimension of the mesh (default: replicated) */
} cdp_layout;

/* Elements [start, start + size) of each dimension of a tensor. */
typedef struct cdp_box {
    uint64_t start[CDP_TENSOR_DIMS], size[CDP_TENSOR_DIMS];
} cdp_box;

typedef enum cdp_draw_format {
    CDP_DRAW_TEXT = 0, /* ASCII, at most 100 columns where the mesh is small */
    CDP_DRAW_COLOR,    /* the same with colours for a terminal */
    CDP_DRAW_SVG,      /* readable on dark and on light backgrounds */
    CDP_DRAW_JSON
} cdp_draw_format;

/* Set layout->place from text, one placement per mesh dimension, separated by commas:
   R, S<dim>, P, P(sum), P(avg), P(min), P(max), P(product). After S<dim>, in any order: /<block>,
   !<order>, #<cut>. Examples: "S0,R", "S-1/64,P(max)", "S0!1,S0". mesh and ndim must be set.
   Errors: INVALID (the text says at which character), and those of cdp_layout_check(). */
CDP_MUST_CHECK CDP_API cdp_status cdp_layout_parse(cdp_layout *layout, const char *places);

/* The placements as text that cdp_layout_parse() reads back; dims are written as counted from the
   start. Writes at most `room` bytes, a zero at the end among them; `text` may be NULL. Returns the
   length of the whole text without the zero. */
CDP_API uint64_t cdp_layout_text(const cdp_layout *layout, char *text, uint64_t room);

/* OK if every member is valid. Errors: INVALID (no mesh, a dim out of range, too large a shape, a
   block that is no multiple of the block of a later cut, a cut beside another shard of its
   dimension or with another total); UNSUPPORTED (PARTIAL placements of different ops, except sum
   with avg; an op that the dtype does not have); STATE (its mesh was destroyed; a cut was
   replaced, see cdp_layout_from_local()). */
CDP_MUST_CHECK CDP_API cdp_status cdp_layout_check(const cdp_layout *layout);

/* Set *out (NULL: not wanted) to what the rank at coord[0..] of the mesh holds (NULL: this rank).
   In a dimension where it holds nothing, size is 0 and start is the size of the whole tensor.
   Returns the number of its elements; 0 for ranks outside the mesh, and if a cut was replaced.
   `layout` must be valid. */
CDP_API uint64_t cdp_layout_box(const cdp_layout *layout, const uint32_t *coord, cdp_box *out);

/* True if every rank holds the same data under both: no byte need be moved. False if a cut was
   replaced. */
CDP_API bool cdp_layout_same(const cdp_layout *a, const cdp_layout *b);

/* Draw which rank holds what, for every rank of the mesh; tensors of more than two dimensions as
   planes. Local, also on paper. Writes at most `room` bytes, a zero at the end among them; `text`
   may be NULL. Returns the length of the whole text without the zero; 0 if `layout` is not
   valid. */
CDP_API uint64_t cdp_layout_draw(
    const cdp_layout *layout, cdp_draw_format format, char *text, uint64_t room);

#endif /* CDP_SRC_DTENSOR_LAYOUT_API_H */
