! SPDX-License-Identifier: MIT-0 OR Unlicense
! cdp.f90 - groups, collectives, messages and DDP from Fortran
!
!     gcc -O2 -c -I. fortran/cdp_fortran.c -o cdp.o
!     gfortran -O2 fortran/cdp.f90 program.f90 cdp.o -o program -pthread -lm
!     cdprun -n 4 ./program
!
!     use cdp
!     type(cdp_group) :: world
!     real(8), target :: x(1000)
!     call cdp_init(world)
!     x = cdp_rank(world)
!     call cdp_allreduce(world, cdp_of(x), CDP_AVG)       ! the mean over all ranks, in place
!     call cdp_group_destroy(world)
!
! ARRAYS. cdp_of(x) names a variable or an array of any rank: real, complex, or integer of 1 to 8
! bytes. It has the TARGET attribute, and its elements lie one after the other. Operations with
! two arrays, `in` and `out`, work in place where `in` is left out.
!
! ERRORS. Every subroutine that can fail has a last argument `status`, which may be left out: then a
! failure prints its text, with rank, peer and operation, and ends the program. Else it is CDP_OK (0),
! or negative: cdp_error_text() says what happened and what to change. After an error of a group that
! is not CDP_ERR_INVALID the group cannot be used any more.
!
! NUMBERS. Ranks, roots and tags begin at 0, as in MPI; parameters of a ddp at 1, as arrays do.
!
! Comments of cdp.h say more of each operation: names are the same.
module cdp
    use, intrinsic :: iso_c_binding
    implicit none
    private
    public :: cdp_group, cdp_work, cdp_ddp, cdp_array, cdp_parameter, cdp_of
    public :: cdp_init, cdp_group_split, cdp_group_destroy, cdp_rank, cdp_size, cdp_abort
    public :: cdp_allreduce, cdp_reduce, cdp_broadcast, cdp_allgather, cdp_gather, cdp_scatter
    public :: cdp_reduce_scatter, cdp_alltoall, cdp_scan, cdp_exscan, cdp_barrier
    public :: cdp_send, cdp_recv, cdp_wait
    public :: cdp_param, cdp_ddp_create, cdp_ddp_destroy, cdp_ddp_grad, cdp_ddp_backward_begin
    public :: cdp_ddp_ready, cdp_ddp_backward_end, cdp_ddp_no_sync, cdp_ddp_zero_grad, cdp_ddp_clip
    public :: cdp_error_text

    integer(c_int), parameter, public :: CDP_OK = 0
    integer(c_int), parameter, public :: CDP_SUM = 1, CDP_AVG = 2, CDP_MIN = 3, CDP_MAX = 4, &
        CDP_PRODUCT = 5, CDP_BAND = 6, CDP_BOR = 7, CDP_BXOR = 8
    integer(c_int), parameter :: F32 = 1, F64 = 2, I32 = 3, I64 = 4, I8 = 8, I16 = 9, CF32 = 16, CF64 = 17
    integer(c_int), parameter :: ALLREDUCE = 1, BROADCAST = 2, ALLGATHER = 3, REDUCE = 5, GATHER = 6, &
        SCATTER = 7, REDUCE_SCATTER = 8, ALLTOALL = 9, SCAN = 11, EXSCAN = 12

    !> Ranks that communicate.
    type :: cdp_group
        private
        type(c_ptr) :: handle = c_null_ptr
    end type

    !> An operation in flight: its arrays belong to the library until cdp_wait().
    type, bind(c) :: cdp_work
        private
        type(c_ptr) :: group = c_null_ptr
        integer(c_int64_t) :: seq = 0
    end type

    !> A model whose gradients are averaged while backward runs.
    type :: cdp_ddp
        private
        type(c_ptr) :: handle = c_null_ptr
        integer(c_int64_t), allocatable :: counts(:)
        integer(c_int), allocatable :: dtypes(:)
    end type

    !> An array of the program: see cdp_of().
    type, bind(c) :: cdp_array
        private
        type(c_ptr) :: data = c_null_ptr
        integer(c_int64_t) :: count = 0
        integer(c_int32_t) :: dtype = 0
    end type

    !> One parameter of a model: see cdp_param().
    type :: cdp_parameter
        private
        character(len=:), allocatable :: name
        type(cdp_array) :: value, grad
    end type

    type, bind(c) :: c_parameter
        type(c_ptr) :: name
        type(cdp_array) :: value, grad
    end type

    !> cdp_of(x): x as an argument of an operation.
    interface cdp_of
        module procedure of_f32, of_f64, of_cf32, of_cf64, of_i8, of_i16, of_i32, of_i64
    end interface

    !> call cdp_ddp_grad(ddp, i, g): the gradient of parameter i as a pointer to its values in their
    !> bucket, which stays where it is until the ddp is destroyed.
    interface cdp_ddp_grad
        module procedure grad_f32, grad_f64
    end interface

    interface
        integer(c_int) function c_init(alone_ok, group) bind(c, name='cdp_f_init')
            import :: c_int, c_bool, c_ptr
            logical(c_bool), value :: alone_ok
            type(c_ptr), intent(out) :: group
        end function
        integer(c_int) function c_split(group, color, key, out) bind(c, name='cdp_f_split')
            import :: c_int, c_int32_t, c_ptr
            type(c_ptr), value :: group
            integer(c_int32_t), value :: color, key
            type(c_ptr), intent(out) :: out
        end function
        integer(c_int) function c_collective(group, kind, in, out, count, op, root, work) &
            bind(c, name='cdp_f_collective')
            import :: c_int, c_int32_t, c_int64_t, c_ptr, cdp_array, cdp_work
            type(c_ptr), value :: group
            integer(c_int32_t), value :: kind, op, root
            type(cdp_array), intent(in) :: in, out
            integer(c_int64_t), value :: count
            type(cdp_work), intent(out) :: work
        end function
        integer(c_int) function c_send(group, x, to, tag) bind(c, name='cdp_f_send')
            import :: c_int, c_int32_t, c_ptr, cdp_array
            type(c_ptr), value :: group
            type(cdp_array), intent(in) :: x
            integer(c_int32_t), value :: to, tag
        end function
        integer(c_int) function c_recv(group, x, from, tag) bind(c, name='cdp_f_recv')
            import :: c_int, c_int32_t, c_ptr, cdp_array
            type(c_ptr), value :: group
            type(cdp_array), intent(in) :: x
            integer(c_int32_t), value :: from, tag
        end function
        integer(c_int) function c_barrier(group) bind(c, name='cdp_barrier')
            import :: c_int, c_ptr
            type(c_ptr), value :: group
        end function
        integer(c_int) function c_wait(work) bind(c, name='cdp_work_wait')
            import :: c_int, cdp_work
            type(cdp_work), value :: work
        end function
        integer(c_int32_t) function c_rank(group) bind(c, name='cdp_rank')
            import :: c_int32_t, c_ptr
            type(c_ptr), value :: group
        end function
        integer(c_int32_t) function c_size(group) bind(c, name='cdp_size')
            import :: c_int32_t, c_ptr
            type(c_ptr), value :: group
        end function
        subroutine c_group_destroy(group) bind(c, name='cdp_group_destroy')
            import :: c_ptr
            type(c_ptr), value :: group
        end subroutine
        subroutine c_abort(group, reason) bind(c, name='cdp_group_abort')
            import :: c_ptr, c_char
            type(c_ptr), value :: group
            character(kind=c_char), intent(in) :: reason(*)
        end subroutine
        integer(c_int) function c_ddp_create(group, params, count, bucket_bytes, find_unused, out) &
            bind(c, name='cdp_f_ddp_create')
            import :: c_int, c_int32_t, c_int64_t, c_bool, c_ptr, c_parameter
            type(c_ptr), value :: group
            type(c_parameter), intent(in) :: params(*)
            integer(c_int32_t), value :: count
            integer(c_int64_t), value :: bucket_bytes
            logical(c_bool), value :: find_unused
            type(c_ptr), intent(out) :: out
        end function
        type(c_ptr) function c_ddp_grad(ddp, index) bind(c, name='cdp_ddp_grad')
            import :: c_int32_t, c_ptr
            type(c_ptr), value :: ddp
            integer(c_int32_t), value :: index
        end function
        integer(c_int) function c_ddp_begin(ddp) bind(c, name='cdp_ddp_backward_begin')
            import :: c_int, c_ptr
            type(c_ptr), value :: ddp
        end function
        integer(c_int) function c_ddp_ready(ddp, index) bind(c, name='cdp_ddp_ready')
            import :: c_int, c_int32_t, c_ptr
            type(c_ptr), value :: ddp
            integer(c_int32_t), value :: index
        end function
        integer(c_int) function c_ddp_end(ddp) bind(c, name='cdp_ddp_backward_end')
            import :: c_int, c_ptr
            type(c_ptr), value :: ddp
        end function
        integer(c_int) function c_ddp_no_sync(ddp, on) bind(c, name='cdp_ddp_no_sync')
            import :: c_int, c_bool, c_ptr
            type(c_ptr), value :: ddp
            logical(c_bool), value :: on
        end function
        subroutine c_ddp_zero_grad(ddp) bind(c, name='cdp_ddp_zero_grad')
            import :: c_ptr
            type(c_ptr), value :: ddp
        end subroutine
        integer(c_int) function c_ddp_clip(ddp, most, norm) bind(c, name='cdp_ddp_clip')
            import :: c_int, c_double, c_ptr
            type(c_ptr), value :: ddp
            real(c_double), value :: most
            real(c_double), intent(out) :: norm
        end function
        subroutine c_ddp_destroy(ddp) bind(c, name='cdp_ddp_destroy')
            import :: c_ptr
            type(c_ptr), value :: ddp
        end subroutine
        integer(c_int64_t) function c_error_text(text, room) bind(c, name='cdp_f_error_text')
            import :: c_int64_t, c_char
            character(kind=c_char), intent(out) :: text(*)
            integer(c_int64_t), value :: room
        end function
        integer(c_int) function c_print_error(file) bind(c, name='cdp_print_error')
            import :: c_int, c_ptr
            type(c_ptr), value :: file
        end function
    end interface

contains

    ! ---- groups ----

    !> Connects the ranks of this job, as cdp_init_from_env(). alone_ok: without a launcher this
    !> process is a job of one rank (default: an error).
    subroutine cdp_init(group, alone_ok, status)
        type(cdp_group), intent(out) :: group
        logical, intent(in), optional :: alone_ok
        integer, intent(out), optional :: status
        logical(c_bool) :: alone
        alone = .false.
        if (present(alone_ok)) alone = alone_ok
        call done(c_init(alone, group%handle), status)
    end subroutine

    !> Ranks that give the same color become a group, ordered by key; a negative color: none.
    subroutine cdp_group_split(parent, color, key, group, status)
        type(cdp_group), intent(in) :: parent
        integer, intent(in) :: color, key
        type(cdp_group), intent(out) :: group
        integer, intent(out), optional :: status
        call done(c_split(parent%handle, int(color, c_int32_t), int(key, c_int32_t), group%handle), status)
    end subroutine

    subroutine cdp_group_destroy(group)
        type(cdp_group), intent(inout) :: group
        call c_group_destroy(group%handle)
        group%handle = c_null_ptr
    end subroutine

    integer function cdp_rank(group)
        type(cdp_group), intent(in) :: group
        cdp_rank = c_rank(group%handle)
    end function

    integer function cdp_size(group)
        type(cdp_group), intent(in) :: group
        cdp_size = c_size(group%handle)
    end function

    !> All ranks of the group get CDP_ERR_ABORTED with this reason.
    subroutine cdp_abort(group, reason)
        type(cdp_group), intent(in) :: group
        character(*), intent(in) :: reason
        call c_abort(group%handle, reason // c_null_char)
    end subroutine

    ! ---- collective operations: with `work` they only start, until cdp_wait() ----

    subroutine cdp_allreduce(group, out, op, in, work, status)
        type(cdp_group), intent(in) :: group
        type(cdp_array), intent(in) :: out
        integer, intent(in) :: op
        type(cdp_array), intent(in), optional :: in
        type(cdp_work), intent(out), optional :: work
        integer, intent(out), optional :: status
        call collective(group, ALLREDUCE, out, out%count, in=in, op=op, work=work, status=status)
    end subroutine

    !> `out` of rank `root` gets the result.
    subroutine cdp_reduce(group, out, op, root, in, work, status)
        type(cdp_group), intent(in) :: group
        type(cdp_array), intent(in) :: out
        integer, intent(in) :: op, root
        type(cdp_array), intent(in), optional :: in
        type(cdp_work), intent(out), optional :: work
        integer, intent(out), optional :: status
        call collective(group, REDUCE, out, out%count, in=in, op=op, root=root, work=work, status=status)
    end subroutine

    subroutine cdp_broadcast(group, x, root, work, status)
        type(cdp_group), intent(in) :: group
        type(cdp_array), intent(in) :: x
        integer, intent(in) :: root
        type(cdp_work), intent(out), optional :: work
        integer, intent(out), optional :: status
        call collective(group, BROADCAST, x, x%count, root=root, work=work, status=status)
    end subroutine

    !> Arrays of all ranks, one after the other: `out` has as many elements as all `in`.
    subroutine cdp_allgather(group, in, out, work, status)
        type(cdp_group), intent(in) :: group
        type(cdp_array), intent(in) :: in, out
        type(cdp_work), intent(out), optional :: work
        integer, intent(out), optional :: status
        call collective(group, ALLGATHER, out, in%count, in=in, work=work, status=status)
    end subroutine

    subroutine cdp_gather(group, in, out, root, work, status)
        type(cdp_group), intent(in) :: group
        type(cdp_array), intent(in) :: in, out
        integer, intent(in) :: root
        type(cdp_work), intent(out), optional :: work
        integer, intent(out), optional :: status
        call collective(group, GATHER, out, in%count, in=in, root=root, work=work, status=status)
    end subroutine

    subroutine cdp_scatter(group, in, out, root, work, status)
        type(cdp_group), intent(in) :: group
        type(cdp_array), intent(in) :: in, out
        integer, intent(in) :: root
        type(cdp_work), intent(out), optional :: work
        integer, intent(out), optional :: status
        call collective(group, SCATTER, out, out%count, in=in, root=root, work=work, status=status)
    end subroutine

    !> Rank r gets part r of the reduction of all `in`.
    subroutine cdp_reduce_scatter(group, in, out, op, work, status)
        type(cdp_group), intent(in) :: group
        type(cdp_array), intent(in) :: in, out
        integer, intent(in) :: op
        type(cdp_work), intent(out), optional :: work
        integer, intent(out), optional :: status
        call collective(group, REDUCE_SCATTER, out, out%count, in=in, op=op, work=work, status=status)
    end subroutine

    !> Part r of `in` goes to rank r; part r of `out` comes from there.
    subroutine cdp_alltoall(group, in, out, work, status)
        type(cdp_group), intent(in) :: group
        type(cdp_array), intent(in) :: in, out
        type(cdp_work), intent(out), optional :: work
        integer, intent(out), optional :: status
        call collective(group, ALLTOALL, out, out%count / max(1, cdp_size(group)), in=in, work=work, &
            status=status)
    end subroutine

    !> The reduction over the ranks up to this one; cdp_exscan: up to the one before.
    subroutine cdp_scan(group, out, op, in, status)
        type(cdp_group), intent(in) :: group
        type(cdp_array), intent(in) :: out
        integer, intent(in) :: op
        type(cdp_array), intent(in), optional :: in
        integer, intent(out), optional :: status
        call collective(group, SCAN, out, out%count, in=in, op=op, status=status)
    end subroutine

    subroutine cdp_exscan(group, out, op, in, status)
        type(cdp_group), intent(in) :: group
        type(cdp_array), intent(in) :: out
        integer, intent(in) :: op
        type(cdp_array), intent(in), optional :: in
        integer, intent(out), optional :: status
        call collective(group, EXSCAN, out, out%count, in=in, op=op, status=status)
    end subroutine

    subroutine cdp_barrier(group, status)
        type(cdp_group), intent(in) :: group
        integer, intent(out), optional :: status
        call done(c_barrier(group%handle), status)
    end subroutine

    subroutine cdp_wait(work, status)
        type(cdp_work), intent(in) :: work
        integer, intent(out), optional :: status
        call done(c_wait(work), status)
    end subroutine

    ! ---- messages ----

    subroutine cdp_send(group, x, to, tag, status)
        type(cdp_group), intent(in) :: group
        type(cdp_array), intent(in) :: x
        integer, intent(in) :: to, tag
        integer, intent(out), optional :: status
        call done(c_send(group%handle, x, int(to, c_int32_t), int(tag, c_int32_t)), status)
    end subroutine

    subroutine cdp_recv(group, x, from, tag, status)
        type(cdp_group), intent(in) :: group
        type(cdp_array), intent(in) :: x
        integer, intent(in) :: from, tag
        integer, intent(out), optional :: status
        call done(c_recv(group%handle, x, int(from, c_int32_t), int(tag, c_int32_t)), status)
    end subroutine

    ! ---- data parallel training ----

    !> One parameter of a model. Without `grad` its gradient lives in a bucket: see cdp_ddp_grad().
    type(cdp_parameter) function cdp_param(name, value, grad) result(p)
        character(*), intent(in) :: name
        type(cdp_array), intent(in) :: value
        type(cdp_array), intent(in), optional :: grad
        p%name = name
        p%value = value
        if (present(grad)) p%grad = grad
    end function

    !> Copies the parameters of rank 0 to all ranks. bucket_bytes: 0 is the default.
    subroutine cdp_ddp_create(group, params, ddp, bucket_bytes, find_unused, status)
        type(cdp_group), intent(in) :: group
        type(cdp_parameter), intent(in) :: params(:)
        type(cdp_ddp), intent(out) :: ddp
        integer(c_int64_t), intent(in), optional :: bucket_bytes
        logical, intent(in), optional :: find_unused
        integer, intent(out), optional :: status
        type(c_parameter) :: c(size(params))
        character(kind=c_char, len=128), target :: names(size(params))
        integer(c_int64_t) :: bucket
        logical(c_bool) :: unused
        integer :: i
        bucket = 0
        unused = .false.
        if (present(bucket_bytes)) bucket = bucket_bytes
        if (present(find_unused)) unused = find_unused
        do i = 1, size(params)
            names(i) = params(i)%name(1:min(127, len(params(i)%name))) // c_null_char
            c(i) = c_parameter(c_loc(names(i)), params(i)%value, params(i)%grad)
        end do
        ddp%counts = [(params(i)%value%count, i = 1, size(params))]
        ddp%dtypes = [(params(i)%value%dtype, i = 1, size(params))]
        call done(c_ddp_create(group%handle, c, size(params, kind=c_int32_t), bucket, unused, &
            ddp%handle), status)
    end subroutine

    subroutine cdp_ddp_destroy(ddp)
        type(cdp_ddp), intent(inout) :: ddp
        call c_ddp_destroy(ddp%handle)
        ddp%handle = c_null_ptr
    end subroutine

    subroutine cdp_ddp_backward_begin(ddp, status)
        type(cdp_ddp), intent(in) :: ddp
        integer, intent(out), optional :: status
        call done(c_ddp_begin(ddp%handle), status)
    end subroutine

    !> The gradient of parameter i is complete: a full bucket leaves at once.
    subroutine cdp_ddp_ready(ddp, i, status)
        type(cdp_ddp), intent(in) :: ddp
        integer, intent(in) :: i
        integer, intent(out), optional :: status
        call done(c_ddp_ready(ddp%handle, int(i - 1, c_int32_t)), status)
    end subroutine

    !> Afterwards gradients are the mean over all ranks.
    subroutine cdp_ddp_backward_end(ddp, status)
        type(cdp_ddp), intent(in) :: ddp
        integer, intent(out), optional :: status
        call done(c_ddp_end(ddp%handle), status)
    end subroutine

    !> on: passes add to the gradients of this rank alone, until one begins with off.
    subroutine cdp_ddp_no_sync(ddp, on, status)
        type(cdp_ddp), intent(in) :: ddp
        logical, intent(in) :: on
        integer, intent(out), optional :: status
        call done(c_ddp_no_sync(ddp%handle, logical(on, c_bool)), status)
    end subroutine

    subroutine cdp_ddp_zero_grad(ddp)
        type(cdp_ddp), intent(in) :: ddp
        call c_ddp_zero_grad(ddp%handle)
    end subroutine

    !> Scales the gradients so that their norm is at most `most`; norm: what it was.
    subroutine cdp_ddp_clip(ddp, most, norm, status)
        type(cdp_ddp), intent(in) :: ddp
        real(c_double), intent(in) :: most
        real(c_double), intent(out) :: norm
        integer, intent(out), optional :: status
        call done(c_ddp_clip(ddp%handle, most, norm), status)
    end subroutine

    subroutine grad_f32(ddp, i, g)
        type(cdp_ddp), intent(in) :: ddp
        integer, intent(in) :: i
        real(c_float), pointer, intent(out) :: g(:)
        g => null()
        if (is_grad(ddp, i, F32)) call c_f_pointer(c_ddp_grad(ddp%handle, int(i - 1, c_int32_t)), g, &
            [ddp%counts(i)])
    end subroutine

    subroutine grad_f64(ddp, i, g)
        type(cdp_ddp), intent(in) :: ddp
        integer, intent(in) :: i
        real(c_double), pointer, intent(out) :: g(:)
        g => null()
        if (is_grad(ddp, i, F64)) call c_f_pointer(c_ddp_grad(ddp%handle, int(i - 1, c_int32_t)), g, &
            [ddp%counts(i)])
    end subroutine

    ! ---- errors ----

    !> What the last failure was, and what to change.
    function cdp_error_text() result(text)
        character(:), allocatable :: text
        character(kind=c_char) :: none(1)
        integer(c_int64_t) :: length
        length = c_error_text(none, 0_c_int64_t)
        allocate (character(length) :: text)
        length = c_error_text(text, length + 1)
    end function

    ! ---- private ----

    subroutine done(code, status)
        integer(c_int), intent(in) :: code
        integer, intent(out), optional :: status
        integer(c_int) :: printed
        if (present(status)) then
            status = code
        else if (code /= CDP_OK) then
            printed = c_print_error(c_null_ptr)
            stop 1, quiet=.true.
        end if
    end subroutine

    subroutine collective(group, kind, out, count, in, op, root, work, status)
        type(cdp_group), intent(in) :: group
        integer(c_int), intent(in) :: kind
        type(cdp_array), intent(in) :: out
        integer(c_int64_t), intent(in) :: count
        type(cdp_array), intent(in), optional :: in
        integer, intent(in), optional :: op, root
        type(cdp_work), intent(out), optional :: work
        integer, intent(out), optional :: status
        type(cdp_array) :: from
        type(cdp_work) :: started
        integer(c_int32_t) :: how, where_to
        integer(c_int) :: code
        how = 0
        where_to = 0
        if (present(in)) from = in
        if (present(op)) how = op
        if (present(root)) where_to = root
        code = c_collective(group%handle, kind, from, out, count, how, where_to, started)
        if (present(work)) then
            work = started
        else if (code == CDP_OK) then
            code = c_wait(started)
        end if
        call done(code, status)
    end subroutine

    logical function is_grad(ddp, i, dtype)
        type(cdp_ddp), intent(in) :: ddp
        integer, intent(in) :: i
        integer(c_int), intent(in) :: dtype
        is_grad = .false.
        if (.not. c_associated(ddp%handle) .or. i < 1 .or. i > size(ddp%counts)) return
        is_grad = ddp%dtypes(i) == dtype
    end function

    type(cdp_array) function array(data, count, dtype, contiguous)
        type(c_ptr), intent(in) :: data
        integer(c_int64_t), intent(in) :: count
        integer(c_int), intent(in) :: dtype
        logical, intent(in) :: contiguous
        if (count < 0) error stop 'cdp_of: an array (*) has no size: pass x(1:n)'
        if (.not. contiguous) error stop &
            'cdp_of: the elements of this array do not lie one after the other: copy it'
        array = cdp_array(data, count, dtype)
    end function

    type(cdp_array) function of_f32(x)
        real(c_float), intent(in), target :: x(..)
        of_f32 = array(c_loc(x), size(x, kind=c_int64_t), F32, is_contiguous(x))
    end function

    type(cdp_array) function of_f64(x)
        real(c_double), intent(in), target :: x(..)
        of_f64 = array(c_loc(x), size(x, kind=c_int64_t), F64, is_contiguous(x))
    end function

    type(cdp_array) function of_cf32(x)
        complex(c_float_complex), intent(in), target :: x(..)
        of_cf32 = array(c_loc(x), size(x, kind=c_int64_t), CF32, is_contiguous(x))
    end function

    type(cdp_array) function of_cf64(x)
        complex(c_double_complex), intent(in), target :: x(..)
        of_cf64 = array(c_loc(x), size(x, kind=c_int64_t), CF64, is_contiguous(x))
    end function

    type(cdp_array) function of_i8(x)
        integer(c_int8_t), intent(in), target :: x(..)
        of_i8 = array(c_loc(x), size(x, kind=c_int64_t), I8, is_contiguous(x))
    end function

    type(cdp_array) function of_i16(x)
        integer(c_int16_t), intent(in), target :: x(..)
        of_i16 = array(c_loc(x), size(x, kind=c_int64_t), I16, is_contiguous(x))
    end function

    type(cdp_array) function of_i32(x)
        integer(c_int32_t), intent(in), target :: x(..)
        of_i32 = array(c_loc(x), size(x, kind=c_int64_t), I32, is_contiguous(x))
    end function

    type(cdp_array) function of_i64(x)
        integer(c_int64_t), intent(in), target :: x(..)
        of_i64 = array(c_loc(x), size(x, kind=c_int64_t), I64, is_contiguous(x))
    end function
end module
