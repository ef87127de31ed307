! 19_fortran.f90 - data parallel training from Fortran
!
! You learn: groups, collectives, messages and DDP with the module cdp (fortran/cdp.f90), whose
! arguments are arrays, and what happens on an error.
!
!     gcc -O2 -c -I. fortran/cdp_fortran.c -o cdp.o
!     gfortran -O2 fortran/cdp.f90 examples/19_fortran.f90 cdp.o -o fortran -pthread -lm
!     cdprun -n 4 ./fortran
!
! SPDX-License-Identifier: MIT-0 OR Unlicense
program main
    use cdp
    implicit none
    type(cdp_group) :: world
    real(8), target :: x(3), right(3)
    integer, target :: mine(2), all_ranks(2 * 64)
    integer :: rank, ranks, status
    logical :: ok
    call cdp_init(world, alone_ok=.true.)
    rank = cdp_rank(world)
    ranks = cdp_size(world)

    ! the mean over all ranks, in place
    x = [1d0, 10d0, 100d0] * (rank + 1)
    right = [1d0, 10d0, 100d0] * (ranks + 1) / 2
    call cdp_allreduce(world, cdp_of(x), CDP_AVG)
    ok = all(abs(x - right) < 1d-12)

    ! two numbers of each rank, on all of them
    mine = [rank, rank * rank]
    call cdp_allgather(world, cdp_of(mine), cdp_of(all_ranks(1:2 * ranks)))
    ok = ok .and. all_ranks(2 * ranks) == (ranks - 1)**2

    ! a status instead of the end of the program: an array that is too short is refused
    call cdp_allgather(world, cdp_of(mine), cdp_of(all_ranks(1:2 * ranks + 1)), status=status)
    ok = ok .and. status /= CDP_OK
    if (rank == 0) print '(2a)', 'as it should be: ', cdp_error_text()

    call learn(ok)
    print '(a, i0, a, 3f8.1, a)', 'rank ', rank, ': means', x, merge(': right', ': wrong', ok)
    call cdp_group_destroy(world)
    if (.not. ok) stop 1

contains

    ! y = 1 + 2 x, each rank with points of its own
    subroutine learn(ok)
        logical, intent(inout) :: ok
        real(4), target :: w(2)
        real(4), pointer :: g(:)
        real(4) :: point, err
        type(cdp_ddp) :: ddp
        integer :: step
        w = rank ! rank 0's are copied to all
        call cdp_ddp_create(world, [cdp_param('w', cdp_of(w))], ddp)
        call cdp_ddp_grad(ddp, 1, g)
        do step = 1, 300
            call cdp_ddp_backward_begin(ddp)
            point = mod(step * 7 + rank * 3, 10) / 10.0
            err = w(1) + w(2) * point - (1 + 2 * point)
            g = [err, err * point]
            call cdp_ddp_ready(ddp, 1)
            call cdp_ddp_backward_end(ddp)
            w = w - 0.5 * g ! g is the mean over all ranks now
        end do
        if (rank == 0) print '(a, f6.3, a, f6.3, a)', 'y = ', w(1), ' + ', w(2), ' x'
        ok = ok .and. all(abs(w - [1.0, 2.0]) < 1e-3)
        call cdp_ddp_destroy(ddp)
    end subroutine
end program
