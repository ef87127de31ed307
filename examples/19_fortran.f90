! 19_fortran.f90 - an allreduce and a broadcast from Fortran
!
! You learn: how another language calls cdp: its C functions, declared by iso_c_binding.
!
!     printf '#define CDP_IMPLEMENTATION\n#include "cdp_tcp.h"\n' | gcc -O2 -x c -I. -c - -o cdp.o
!     gfortran -O2 examples/19_fortran.f90 cdp.o -o fortran -pthread -lm
!     cdprun -n 4 ./fortran
!
! Structs of the library stay on the C side: cdp_init_from_env() takes a null pointer for its desc,
! and groups are pointers. A status other than 0 is an error; cdp_print_error() with a null pointer
! prints it to stderr.
! SPDX-License-Identifier: MIT-0 OR Unlicense
module cdp
    use, intrinsic :: iso_c_binding
    implicit none
    ! cdp_dtype and cdp_reduce_op of cdp.h, as far as this program needs them
    integer(c_int), parameter :: CDP_DTYPE_F32 = 1, CDP_DTYPE_F64 = 2
    integer(c_int), parameter :: CDP_REDUCE_SUM = 1, CDP_REDUCE_AVG = 2
    interface
        integer(c_int) function cdp_init_from_env(desc, world) bind(c)
            import :: c_int, c_ptr
            type(c_ptr), value :: desc
            type(c_ptr), intent(out) :: world
        end function
        integer(c_int32_t) function cdp_rank(group) bind(c)
            import :: c_int32_t, c_ptr
            type(c_ptr), value :: group
        end function
        integer(c_int32_t) function cdp_size(group) bind(c)
            import :: c_int32_t, c_ptr
            type(c_ptr), value :: group
        end function
        integer(c_int) function cdp_allreduce(group, in, out, count, dtype, op) bind(c)
            import :: c_int, c_int64_t, c_ptr
            type(c_ptr), value :: group, in, out
            integer(c_int64_t), value :: count
            integer(c_int), value :: dtype, op
        end function
        integer(c_int) function cdp_print_error(file) bind(c)
            import :: c_int, c_ptr
            type(c_ptr), value :: file
        end function
        subroutine cdp_group_destroy(group) bind(c)
            import :: c_ptr
            type(c_ptr), value :: group
        end subroutine
    end interface
end module

program main
    use cdp
    implicit none
    type(c_ptr) :: world
    real(c_double), target :: x(3)
    real(c_double) :: mean
    integer :: rank, ranks
    if (cdp_init_from_env(c_null_ptr, world) /= 0) stop cdp_print_error(c_null_ptr)
    rank = cdp_rank(world)
    ranks = cdp_size(world)
    x = [1d0, 10d0, 100d0] * (rank + 1)
    if (cdp_allreduce(world, c_null_ptr, c_loc(x), size(x, kind=c_int64_t), CDP_DTYPE_F64, &
        CDP_REDUCE_AVG) /= 0) stop cdp_print_error(c_null_ptr)
    mean = (ranks + 1) / 2d0
    print '(a, i0, a, 3f8.1, a)', 'rank ', rank, ': means', x, &
        merge(': right', ': wrong', all(x == mean * [1d0, 10d0, 100d0]))
    call cdp_group_destroy(world)
end program
