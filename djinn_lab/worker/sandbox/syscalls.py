"""The system calls that a worker needs, by the numbers of each kind of processor."""

from __future__ import annotations

from typing import NamedTuple

_X86_64 = """read 0 write 1 open 2 close 3 stat 4 fstat 5 lstat 6 poll 7 lseek 8 mmap 9 mprotect 10 munmap 11
brk 12 rt_sigaction 13 rt_sigprocmask 14 rt_sigreturn 15 pread64 17 pwrite64 18 readv 19 writev 20 access 21
select 23 sched_yield 24 mremap 25 msync 26 mincore 27 madvise 28 dup 32 nanosleep 35 getpid 39 sendto 44
recvfrom 45 sendmsg 46 recvmsg 47 shutdown 48 getsockname 51 getsockopt 55 clone 56 exit 60 uname 63 fcntl 72
flock 73 fsync 74 fdatasync 75 truncate 76 ftruncate 77 getcwd 79 unlink 87 readlink 89 gettimeofday 96
getrlimit 97 getrusage 98 sysinfo 99 times 100 getuid 102 getgid 104 geteuid 107 getegid 108 getppid 110
sigaltstack 131 statfs 137 fstatfs 138 sched_getparam 143 sched_getscheduler 145 sched_get_priority_max 146
sched_get_priority_min 147 prctl 157 arch_prctl 158 gettid 186 futex 202 sched_setaffinity 203
sched_getaffinity 204 getdents64 217 set_tid_address 218 restart_syscall 219 fadvise64 221 clock_gettime 228
clock_getres 229 clock_nanosleep 230 exit_group 231 tgkill 234 mbind 237 set_mempolicy 238 get_mempolicy 239
openat 257 newfstatat 262 unlinkat 263 readlinkat 267 faccessat 269 pselect6 270 ppoll 271 set_robust_list 273
get_robust_list 274 sync_file_range 277 fallocate 285 dup3 292 preadv 295 pwritev 296 prlimit64 302 getcpu 309
getrandom 318 membarrier 324 preadv2 327 pwritev2 328 statx 332 rseq 334 clone3 435 faccessat2 439
futex_waitv 449 ioctl 16"""

_AARCH64 = """getcwd 17 dup 23 dup3 24 fcntl 25 ioctl 29 flock 32 unlinkat 35 statfs 43 fstatfs 44 truncate 45
ftruncate 46 fallocate 47 faccessat 48 openat 56 close 57 getdents64 61 lseek 62 read 63 write 64 readv 65
writev 66 pread64 67 pwrite64 68 preadv 69 pwritev 70 pselect6 72 ppoll 73 readlinkat 78 newfstatat 79 fstat
80 fsync 82 fdatasync 83 sync_file_range 84 exit 93 exit_group 94 set_tid_address 96 futex 98 set_robust_list
99 get_robust_list 100 nanosleep 101 clock_gettime 113 clock_getres 114 clock_nanosleep 115 sched_getscheduler
120 sched_getparam 121 sched_setaffinity 122 sched_getaffinity 123 sched_yield 124 sched_get_priority_max 125
sched_get_priority_min 126 restart_syscall 128 tgkill 131 sigaltstack 132 rt_sigaction 134 rt_sigprocmask 135
rt_sigreturn 139 times 153 uname 160 getrlimit 163 getrusage 165 prctl 167 getcpu 168 gettimeofday 169
getpid 172 getppid 173 getuid 174 geteuid 175 getgid 176 getegid 177 gettid 178 sysinfo 179 getsockname 204
sendto 206 recvfrom 207 getsockopt 209 shutdown 210 sendmsg 211 recvmsg 212 brk 214 munmap 215 mremap 216
clone 220 mmap 222 fadvise64 223 mprotect 226 msync 227 mincore 232 madvise 233 mbind 235 get_mempolicy 236
set_mempolicy 237 prlimit64 261 getrandom 278 membarrier 283 preadv2 286 pwritev2 287 statx 291 rseq 293
clone3 435 faccessat2 439 futex_waitv 449"""


class Machine(NamedTuple):
    """``architecture``: as the kernel's audit names it. ``calls``: by name."""

    architecture: int
    calls: dict[str, int]


def _numbers(text: str) -> dict[str, int]:
    words = text.split()
    return {name: int(number) for name, number in zip(words[::2], words[1::2], strict=True)}


MACHINES = {
    "x86_64": Machine(0xC000003E, _numbers(_X86_64)),
    "aarch64": Machine(0xC00000B7, _numbers(_AARCH64)),
}
