! SPDX-License-Identifier: MIT-0 OR Unlicense
! The module cdp on some ranks: each operation, of each kind of array, beside what it must give. Ends with "N passed, N failed".
program test_fortran
    use, intrinsic :: iso_c_binding
    use cdp
    implicit none
    type(cdp_group) :: world
    integer :: rank, ranks, passed = 0, failed = 0
    call cdp_init(world)
    rank = cdp_rank(world)
    ranks = cdp_size(world)
    call collectives
    call kinds
    if (ranks > 1) call messages
    call groups
    call refused
    call training
    call lost
    print '(i0, a, i0, a)', passed, ' passed, ', failed, ' failed'
    if (failed /= 0) stop 1

contains

    subroutine check(name, right)
        character(*), intent(in) :: name
        logical, intent(in) :: right
        if (right) then
            passed = passed + 1
        else
            failed = failed + 1
            print '(a, i0, 2a)', 'not ok on rank ', rank, ': ', name
        end if
    end subroutine

    subroutine collectives
        real(8), target :: x(4), many(4 * ranks), sum_of(4)
        type(cdp_work) :: work
        integer :: i
        sum_of = [1, 2, 3, 4] * (ranks * (ranks + 1) / 2d0)
        x = [1, 2, 3, 4] * (rank + 1)
        call cdp_allreduce(world, cdp_of(x), CDP_SUM)
        call check('allreduce', all(x == sum_of))
        x = rank
        call cdp_allreduce(world, cdp_of(many(1:4)), CDP_MAX, in=cdp_of(x))
        call check('allreduce of two arrays', all(many(1:4) == ranks - 1) .and. all(x == rank))
        x = [1, 2, 3, 4] * (rank + 1)
        call cdp_allreduce(world, cdp_of(x), CDP_SUM, work=work)
        call cdp_wait(work)
        call check('allreduce that was started', all(x == sum_of))
        x = [1, 2, 3, 4] * (rank + 1)
        call cdp_reduce(world, cdp_of(x), CDP_SUM, ranks - 1)
        call check('reduce', rank /= ranks - 1 .or. all(x == sum_of))
        x = rank
        call cdp_broadcast(world, cdp_of(x), ranks - 1)
        call check('broadcast', all(x == ranks - 1))
        x = rank
        call cdp_allgather(world, cdp_of(x), cdp_of(many))
        call check('allgather', all(many == [((i - 1) / 4, i = 1, 4 * ranks)]))
        many = -1
        if (rank == 0) then
            call cdp_gather(world, cdp_of(x), cdp_of(many), 0)
        else
            call cdp_gather(world, cdp_of(x), cdp_of(many(1:4)), 0)
        end if
        call check('gather', rank /= 0 .or. all(many == [((i - 1) / 4, i = 1, 4 * ranks)]))
        many = [(i, i = 1, 4 * ranks)]
        call cdp_scatter(world, cdp_of(many), cdp_of(x), 0)
        call check('scatter', all(x == [(4 * rank + i, i = 1, 4)]))
        call cdp_reduce_scatter(world, cdp_of(many), cdp_of(x), CDP_SUM)
        call check('reduce_scatter', all(x == ranks * [(4 * rank + i, i = 1, 4)]))
        many = rank
        call cdp_alltoall(world, cdp_of(many), cdp_of(many(1:0)), status=i)
        call check('alltoall into nothing is refused', i /= CDP_OK)
        block
            real(8), target :: got(4 * ranks)
            call cdp_alltoall(world, cdp_of(many), cdp_of(got))
            call check('alltoall', all(got == [((i - 1) / 4, i = 1, 4 * ranks)]))
        end block
        x = 1
        call cdp_scan(world, cdp_of(x), CDP_SUM)
        call check('scan', all(x == rank + 1))
        x = 1
        call cdp_exscan(world, cdp_of(x), CDP_SUM)
        call check('exscan', rank == 0 .or. all(x == rank))
        call cdp_barrier(world)
    end subroutine

    subroutine kinds
        real(c_float), target :: r4(2, 3)
        complex(c_float_complex), target :: c4
        complex(c_double_complex), target :: c8(2)
        integer(c_int8_t), target :: i1(3)
        integer(c_int16_t), target :: i2(3)
        integer(c_int32_t), target :: i4(3)
        integer(c_int64_t), target :: i8
        r4 = 1.5
        c4 = (1, -1)
        c8 = (2, 3)
        i1 = 1_c_int8_t
        i2 = 300_c_int16_t
        i4 = 70000
        i8 = 2_c_int64_t**40
        call cdp_allreduce(world, cdp_of(r4), CDP_SUM)
        call cdp_allreduce(world, cdp_of(c4), CDP_SUM)
        call cdp_allreduce(world, cdp_of(c8), CDP_SUM)
        call cdp_allreduce(world, cdp_of(i1), CDP_SUM)
        call cdp_allreduce(world, cdp_of(i2), CDP_SUM)
        call cdp_allreduce(world, cdp_of(i4), CDP_SUM)
        call cdp_allreduce(world, cdp_of(i8), CDP_SUM)
        call check('a matrix of real(4)', all(r4 == 1.5 * ranks))
        call check('complex', c4 == ranks * (1, -1) .and. all(c8 == ranks * (2, 3)))
        call check('integers', all(i1 == ranks) .and. all(i2 == 300 * ranks) .and. all(i4 == 70000 * ranks) &
            .and. i8 == ranks * 2_c_int64_t**40)
    end subroutine

    subroutine messages
        integer, target :: mine, from_left
        mine = rank
        if (rank == 0) then
            call cdp_send(world, cdp_of(mine), mod(rank + 1, ranks), 7)
            call cdp_recv(world, cdp_of(from_left), mod(rank + ranks - 1, ranks), 7)
        else
            call cdp_recv(world, cdp_of(from_left), rank - 1, 7)
            call cdp_send(world, cdp_of(mine), mod(rank + 1, ranks), 7)
        end if
        call check('messages', from_left == mod(rank + ranks - 1, ranks))
    end subroutine

    subroutine groups
        type(cdp_group) :: part
        integer, target :: members
        call cdp_group_split(world, mod(rank, 2), -rank, part)
        members = 1
        call cdp_allreduce(part, cdp_of(members), CDP_SUM)
        call check('a part of the ranks', members == cdp_size(part) .and. members == (ranks + 1 - mod(rank, 2)) / 2)
        call check('ordered by key', (cdp_rank(part) == 0) .eqv. (rank + 2 >= ranks))
        call cdp_group_destroy(part)
        call cdp_group_split(world, merge(-1, 0, rank == 0), 0, part)
        call check('no color, no group', (cdp_size(part) == 0) .eqv. (rank == 0))
        call cdp_group_destroy(part)
    end subroutine

    subroutine refused
        real(8), target :: x(2), y(3)
        real(4), target :: z(2)
        integer :: status
        x = 0
        y = 0
        z = 0
        call cdp_allreduce(world, cdp_of(y), CDP_SUM, in=cdp_of(x), status=status)
        call check('lengths that differ', status < 0 .and. index(cdp_error_text(), 'in has 2 elements, and needs 3') > 0)
        call cdp_allreduce(world, cdp_of(x), CDP_SUM, in=cdp_of(z), status=status)
        call check('kinds that differ', status < 0 .and. index(cdp_error_text(), 'dtype') > 0)
        call cdp_allreduce(world, cdp_of(x), CDP_BAND, status=status)
        call check('a reduction that reals do not have', status < 0)
        call cdp_broadcast(world, cdp_of(x), ranks, status=status)
        call check('a root that is not there', status < 0)
        x = 1
        call cdp_allreduce(world, cdp_of(x), CDP_SUM)
        call check('what is refused harms nothing', all(x == ranks))
    end subroutine

    subroutine training
        real(4), target :: w(3)
        real(8), target :: v(2), own(2)
        real(4), pointer :: g(:), none(:)
        type(cdp_ddp) :: ddp, wrong
        real(8) :: norm
        integer :: pass, status
        w = rank
        v = 10 * rank
        call cdp_ddp_create(world, [cdp_param('w', cdp_of(w)), cdp_param('v', cdp_of(v), grad=cdp_of(own))], ddp)
        call cdp_ddp_create(world, [cdp_param('v', cdp_of(v), grad=cdp_of(own(1:1)))], wrong, status=status)
        call check('a gradient that is too short is refused', status < 0)
        call check('rank 0''s parameters are everywhere', all(w == 0) .and. all(v == 0))
        call cdp_ddp_grad(ddp, 1, g)
        call cdp_ddp_grad(ddp, 2, none)
        call check('gradients of w are reals of its size', associated(g) .and. size(g) == 3 .and. .not. associated(none))
        do pass = 1, 2
            call cdp_ddp_no_sync(ddp, pass == 1)
            call cdp_ddp_backward_begin(ddp)
            if (pass == 1) g = 0
            g = g + rank + 1
            own = rank + 1
            call cdp_ddp_ready(ddp, 2)
            call cdp_ddp_ready(ddp, 1)
            call cdp_ddp_backward_end(ddp)
        end do
        call check('means of two passes', all(g == ranks + 1))
        call cdp_ddp_clip(ddp, 1d-3, norm)
        call check('clipped', norm > 1 .and. maxval(abs(g)) < 1e-3)
        call cdp_ddp_zero_grad(ddp)
        call check('zero', all(g == 0))
        call cdp_ddp_destroy(ddp)
    end subroutine

    subroutine lost
        real(8), target :: x(2)
        integer :: status
        x = 0
        if (rank == 0) then
            call cdp_abort(world, 'the disk is full')
            passed = passed + 1
        else
            call cdp_allreduce(world, cdp_of(x), CDP_SUM, status=status)
            call check('an abort is an error with its reason', status < 0 .and. index(cdp_error_text(), 'the disk is full') > 0)
        end if
        call cdp_group_destroy(world)
    end subroutine
end program
