/* ddp/trace.h - one step as a picture, a ddp as text

   Knows: the statistics of a ddp. Promises: at most `room` bytes are written, and the length of the
   whole text is returned. */
#ifndef CDP_SRC_DDP_TRACE_H
#define CDP_SRC_DDP_TRACE_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../group/group_api.h"
#include "ddp_api.h"
#include "../base/compiler.h"
#include "../base/helpers.h"
#include "../base/basics.h"
#include "../base/ended.h"
#include "../text/format.h"
#include "../text/svg.h"
#include "../text/timeline.h"
#include "state.h"

#ifndef CDP_NO_DDP
#ifndef CDP_NO_TRACE

CDP__PRIVATE void cdp__trace_json(const cdp_ddp *d, cdp__text *t) {
    const uint64_t called = d->called_ns - d->begin_ns, end = d->end_ns - d->begin_ns;
    const uint32_t rank = cdp_rank(d->group);
    char name[64];
    uint32_t i;
    cdp__text_add(t, "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n");
    cdp__text_add(t,
        "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%u,\"args\":{\"name\":\"rank %u\"}},\n",
        rank, rank);
    cdp__trace_slice(t, "backward", rank, 1, 0, called, d->stats.bytes_per_step);
    cdp__trace_slice(t, "wait", rank, 1, called, end, 0);
    for (i = 0; i < d->param_count; ++i) {
        if (!d->params[i].ready_ns) continue;
        cdp__trace_name(d->params[i].name, name);
        cdp__text_add(t,
            "{\"name\":\"%s\",\"ph\":\"i\",\"s\":\"t\",\"pid\":%u,\"tid\":1,\"ts\":", name, rank);
        cdp__trace_us(t, d->params[i].ready_ns - d->begin_ns);
        cdp__text_add(t, "},\n");
    }
    for (i = 0; i < d->bucket_count; ++i) {
        const cdp__bucket *b = &d->buckets[i];
        if (b->start_ns < d->begin_ns) continue;
        cdp__format(name, sizeof name, "bucket %u", i);
        cdp__trace_slice(t, name, rank, 2, b->start_ns - d->begin_ns, b->end_ns - d->begin_ns,
            cdp__bucket_bytes(b));
    }
    cdp__text_add(t,
        "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%u,\"tid\":1,\"args\":{\"name\":"
        "\"compute\"}},\n"
        "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%u,\"tid\":2,\"args\":{\"name\":"
        "\"communication\"}}]}\n",
        rank, rank);
}

CDP__PRIVATE void cdp__trace_svg(const cdp_ddp *d, cdp__text *t) {
    const uint64_t whole = cdp__max(1, d->end_ns - d->begin_ns),
                   called = d->called_ns - d->begin_ns;
    char name[64];
    uint32_t i;
    cdp__svg_begin(t, 1000, 130);
    cdp__text_add(
        t, "<text x=\"5\" y=\"37\">compute</text><text x=\"5\" y=\"77\">network</text>\n");
    cdp__trace_bar(t, 0, called, whole, 20, "#7aa6c2", "backward");
    cdp__trace_bar(t, called, whole, whole, 20, "#d9d9d9", "wait");
    for (i = 0; i < d->bucket_count; ++i) {
        const cdp__bucket *b = &d->buckets[i];
        cdp__format(name, sizeof name, "bucket %u, %llu bytes", i,
            (unsigned long long)cdp__bucket_bytes(b));
        if (b->start_ns >= d->begin_ns)
            cdp__trace_bar(t, b->start_ns - d->begin_ns, b->end_ns - d->begin_ns, whole, 60,
                i % 2 ? "#c98f5a" : "#e0b07f", name);
    }
    for (i = 0; i < d->param_count; ++i) {
        if (!d->params[i].ready_ns) continue;
        cdp__trace_name(d->params[i].name, name);
        cdp__trace_bar(t, d->params[i].ready_ns - d->begin_ns, d->params[i].ready_ns - d->begin_ns,
            whole, 20, "#204a63", name);
    }
    cdp__text_add(t,
        "<text x=\"80\" y=\"110\">rank %u, step %llu: %llu us; network %llu us, of which %llu us "
        "were waited for</text>\n</svg>\n",
        cdp_rank(d->group), (unsigned long long)d->stats.steps, (unsigned long long)(whole / 1000),
        (unsigned long long)(d->stats.comm_ns / 1000),
        (unsigned long long)(d->stats.exposed_ns / 1000));
}

CDP__PRIVATE void cdp__trace_number(cdp__text *t, const char *name, uint64_t v) {
    cdp__text_add(t, "%s: %llu\n", name, (unsigned long long)v);
}

CDP__PRIVATE void cdp__trace_settings(const cdp_ddp *d, cdp__text *t) {
    uint64_t bytes = 0, most = 0;
    uint32_t i, dtypes = 0;
    bool views = true;
    cdp__trace_number(t, "world_size", cdp_size(d->group));
    cdp__trace_number(t, "rank", cdp_rank(d->group));
    cdp__text_add(t, "module_name: %s\n", d->desc.name ? d->desc.name : "");
#ifndef CDP_NO_RECORDER
    cdp__text_add(t, "backend_name: %s\n", cdp_group_backend_name(d->group));
#endif
    cdp__text_add(t, "output_device: %s\n", d->device ? d->device->name : "cpu");
    cdp__trace_number(t, "num_parameter_tensors", d->param_count);
    for (i = 0; i < d->param_count; ++i) {
        const cdp_param *p = &d->params[i].user;
        bytes += p->count * cdp_dtype_size(p->dtype);
        dtypes |= 1u << p->dtype;
        views = views && !p->grad;
    }
    cdp__trace_number(t, "total_parameter_size_bytes", bytes);
    cdp__text_add(t, "dtypes:");
    for (i = 1; i < CDP_DTYPE_COUNT; ++i)
        if (dtypes >> i & 1) cdp__text_add(t, " %s", cdp_dtype_name((cdp_dtype)i));
    cdp__text_add(t, "\n");
    cdp__trace_number(t, "broadcast_buffers",
        d->desc.buffer_count && !d->desc.no_buffer_broadcast && !d->desc.buffer_hook);
    cdp__trace_number(t, "first_bucket_bytes", d->desc.bucket_list[0]);
    for (i = 0; i < d->desc.bucket_list_count; ++i)
        most = cdp__max(most, d->desc.bucket_list[i]);
    cdp__trace_number(t, "bucket_cap_bytes", most);
    cdp__trace_number(t, "find_unused_parameters", d->desc.find_unused);
    cdp__trace_number(t, "gradient_as_bucket_view", views);
    cdp__trace_number(t, "static_graph", d->desc.static_graph);
    cdp__trace_number(t, "join_uneven_inputs", d->desc.join);
    cdp__trace_number(t, "comm_hook", d->hook.stage != NULL);
}

CDP__PRIVATE void cdp__trace_text(const cdp_ddp *d, cdp__text *t) {
    const cdp_ddp_stats *s = &d->stats;
    uint32_t i, k;
    cdp__trace_settings(d, t);
    cdp__trace_number(t, "iteration", s->steps);
    cdp__trace_number(t, "active_ranks", s->active_ranks);
    cdp__trace_number(t, "unused_parameter_size", s->unused_bytes);
    cdp__trace_number(t, "can_set_static_graph", s->can_set_static_graph);
    cdp__trace_number(t, "has_rebuilt_buckets", s->rebuilt);
    cdp__text_add(t, "bucket_sizes:");
    for (i = 0; i < d->bucket_count; ++i)
        cdp__text_add(t, " %llu", (unsigned long long)cdp__bucket_bytes(&d->buckets[i]));
    cdp__text_add(t, "\nper_bucket_param_indices:");
    for (i = 0; i < d->bucket_count; ++i)
        for (k = 0; k < d->buckets[i].params; ++k)
            cdp__text_add(t, k ? ",%u" : " %u", d->buckets[i].slots[k]);
    cdp__text_add(t, "\nprev_iteration_grad_ready_order_indices:");
    for (i = 0; i < d->ordered && s->steps; ++i)
        cdp__text_add(t, " %u", d->last_order[i]);
    cdp__text_add(t, "\n");
    cdp__trace_number(t, "sent_bytes", s->sent_bytes);
    cdp__trace_number(t, "forward_compute_time_ns", s->forward_ns);
    cdp__trace_number(t, "backward_compute_time_ns", s->backward_ns);
    cdp__trace_number(t, "backward_comm_time_ns", s->comm_ns);
    cdp__trace_number(t, "backward_compute_comm_overlap_time_ns", s->overlap_ns);
    cdp__trace_number(t, "avg_forward_compute_time_ns", s->avg_forward_ns);
    cdp__trace_number(t, "avg_backward_compute_time_ns", s->avg_backward_ns);
    cdp__trace_number(t, "avg_backward_comm_time_ns", s->avg_comm_ns);
    cdp__trace_number(t, "avg_backward_compute_comm_overlap_time_ns", s->avg_overlap_ns);
    cdp__text_add(t, "error: %s\n", d->failed != CDP_OK ? d->failed_error.text : "none");
}

CDP_API uint64_t cdp_ddp_trace(
    const cdp_ddp *d, cdp_trace_format format, char *text, uint64_t room) {
    cdp__text t = cdp__text_of(text, room);
    if (cdp__ended(d)) d = NULL;
    if (d && format == CDP_TRACE_TEXT)
        cdp__trace_text(d, &t);
    else if (d && d->end_ns && format == CDP_TRACE_SVG)
        cdp__trace_svg(d, &t);
    else if (d && d->end_ns)
        cdp__trace_json(d, &t);
    return cdp__text_end(&t);
}

#endif /* CDP_NO_TRACE */
#endif /* CDP_NO_DDP */

#endif /* CDP_SRC_DDP_TRACE_H */
