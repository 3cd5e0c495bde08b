"""The system calls that a worker needs, and those that one with a device's driver must not make, by the
numbers of each kind of processor."""

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


_X86_64_REFUSED = """fork 57 vfork 58 execve 59 execveat 322 socket 41 socketpair 53 connect 42 bind 49
listen 50 accept 43 accept4 288 ptrace 101 process_vm_readv 310 process_vm_writev 311 pidfd_open 434
pidfd_getfd 438 pidfd_send_signal 424 kill 62 tkill 200 rt_sigqueueinfo 129 rt_tgsigqueueinfo 297 bpf 321
perf_event_open 298 io_uring_setup 425 io_uring_enter 426 io_uring_register 427 userfaultfd 323
inotify_init 253 inotify_init1 294 fanotify_init 300 keyctl 250 add_key 248 request_key 249 unshare 272
setns 308 mount 165 umount2 166 pivot_root 155 chroot 161 open_tree 428 move_mount 429 fsopen 430 fsmount 432
mount_setattr 442 setuid 105 setgid 106 setreuid 113 setregid 114 setgroups 116 setresuid 117 setresgid 119
setfsuid 122 setfsgid 123 capset 126 setrlimit 160 chmod 90 fchmod 91 chown 92 fchown 93 lchown 94
fchownat 260 fchmodat 268 fchmodat2 452 utime 132 utimes 235 futimesat 261 utimensat 280 setxattr 188
lsetxattr 189 fsetxattr 190 removexattr 197 lremovexattr 198 fremovexattr 199 kexec_load 246
kexec_file_load 320 init_module 175 finit_module 313 delete_module 176 reboot 169 swapon 167 swapoff 168
acct 163 quotactl 179 syslog 103 adjtimex 159 settimeofday 164 clock_settime 227 clock_adjtime 305
sethostname 170 setdomainname 171 personality 135 name_to_handle_at 303 open_by_handle_at 304 mknod 133
mknodat 259 process_madvise 440 kcmp 312 modify_ldt 154 iopl 172 ioperm 173 shmget 29 shmat 30 semget 64
msgget 68"""

_AARCH64_REFUSED = """execve 221 execveat 281 socket 198 socketpair 199 bind 200 listen 201 accept 202
connect 203 accept4 242 ptrace 117 process_vm_readv 270 process_vm_writev 271 pidfd_open 434 pidfd_getfd 438
pidfd_send_signal 424 kill 129 tkill 130 rt_sigqueueinfo 138 rt_tgsigqueueinfo 240 bpf 280
perf_event_open 241 io_uring_setup 425 io_uring_enter 426 io_uring_register 427 userfaultfd 282
inotify_init1 26 fanotify_init 262 keyctl 219 add_key 217 request_key 218 unshare 97 setns 268 mount 40
umount2 39 pivot_root 41 chroot 51 open_tree 428 move_mount 429 fsopen 430 fsmount 432 mount_setattr 442
setgid 144 setuid 146 setregid 143 setreuid 145 setresuid 147 setresgid 149 setfsuid 151 setfsgid 152
setgroups 159 capset 91 setrlimit 164 fchmod 52 fchmodat 53 fchmodat2 452 fchownat 54 fchown 55 utimensat 88
setxattr 5 lsetxattr 6 fsetxattr 7 removexattr 14 lremovexattr 15 fremovexattr 16 kexec_load 104
kexec_file_load 294 init_module 105 finit_module 273 delete_module 106 reboot 142 swapon 224 swapoff 225
acct 89 quotactl 60 syslog 116 adjtimex 171 settimeofday 170 clock_settime 112 clock_adjtime 266
sethostname 161 setdomainname 162 personality 92 name_to_handle_at 264 open_by_handle_at 265 mknodat 33
process_madvise 440 kcmp 272 shmget 194 shmat 196 semget 190 msgget 186"""


class Machine(NamedTuple):
    """``architecture``: as the kernel's audit names it. ``calls``: that a worker needs, by name.
    ``refused``: what one with a driver must not make, which needs more than anyone has listed."""

    architecture: int
    calls: dict[str, int]
    refused: dict[str, int]
    seccomp: int


def _numbers(text: str) -> dict[str, int]:
    words = text.split()
    return {name: int(number) for name, number in zip(words[::2], words[1::2], strict=True)}


MACHINES = {
    "x86_64": Machine(0xC000003E, _numbers(_X86_64), _numbers(_X86_64_REFUSED), 317),
    "aarch64": Machine(0xC00000B7, _numbers(_AARCH64), _numbers(_AARCH64_REFUSED), 277),
}
