/* Process 1 of a container. See container_init.py for how the bytes there are made from this file. */

#define SYS_write 1
#define SYS_rt_sigprocmask 14
#define SYS_ioctl 16
#define SYS_getpid 39
#define SYS_fork 57
#define SYS_execve 59
#define SYS_wait4 61
#define SYS_kill 62
#define SYS_setpgid 109
#define SYS_rt_sigtimedwait 128
#define SYS_exit_group 231
#define SYS_prlimit64 302
#define RLIMIT_FSIZE 1
#define RLIMIT_NOFILE 7
#define SIGTERM 15
#define SIGCHLD 17
#define SIG_SETMASK 2
#define TIOCSPGRP 0x5410
#define WNOHANG 1
#define ENOENT 2

static long call(long number, long a, long b, long c, long d)
{
    long answer;
    register long r10 __asm__("r10") = d;
    __asm__ volatile("syscall" : "=a"(answer) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10) : "rcx", "r11", "memory");
    return answer;
}

static void say(const char *text)
{
    long size = 0;
    while (text[size])
        size++;
    call(SYS_write, 2, (long)text, size, 0);
}

/* Lower a limit to the number in `text`; 0: leave it. Of open files only the soft limit, which a program may raise again. */
static void limit(int kind, const char *text)
{
    unsigned long wanted = 0, limits[2];
    while (*text >= '0' && *text <= '9')
        wanted = wanted * 10 + (*text++ - '0');
    if (!wanted || call(SYS_prlimit64, 0, kind, 0, (long)limits))
        return;
    if (wanted < limits[1]) {
        limits[0] = wanted;
        if (kind == RLIMIT_FSIZE)
            limits[1] = wanted;
        call(SYS_prlimit64, 0, kind, (long)limits, 0);
    }
}

/* Become the program, found by PATH where its name has no slash. */
static void become(char **argv, char **envp)
{
    char place[4096];
    const char *path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    long error = -ENOENT, got;
    int slash = 0;
    for (char *c = argv[0]; *c; c++)
        slash |= *c == '/';
    if (slash) {
        error = call(SYS_execve, (long)argv[0], (long)argv, (long)envp, 0);
    } else {
        for (char **e = envp; *e; e++)
            if ((*e)[0] == 'P' && (*e)[1] == 'A' && (*e)[2] == 'T' && (*e)[3] == 'H' && (*e)[4] == '=')
                path = *e + 5;
        while (*path) {
            int size = 0;
            while (*path && *path != ':' && size < 2048)
                place[size++] = *path++;
            while (*path && *path != ':')
                path++;
            if (*path)
                path++;
            if (!size)
                place[size++] = '.';
            place[size++] = '/';
            for (char *c = argv[0]; *c && size < 4095; c++)
                place[size++] = *c;
            place[size] = 0;
            got = call(SYS_execve, (long)place, (long)argv, (long)envp, 0);
            if (got != -ENOENT)
                error = got;
        }
    }
    say("cannot execute ");
    say(argv[0]);
    say(error == -ENOENT ? ": not found\n" : ": not executable\n");
    call(SYS_exit_group, error == -ENOENT ? 127 : 126, 0, 0, 0);
}

__attribute__((used)) void begin(long *stack)
{
    long count = stack[0];
    char **argv = (char **)(stack + 1), **envp = argv + count + 1;
    char **program = argv + 3; /* after the limits of open files and of the size of files */
    unsigned long all = ~0UL, before = 0;
    int status;
    if (count < 4)
        call(SYS_exit_group, 125, 0, 0, 0);
    call(SYS_rt_sigprocmask, SIG_SETMASK, (long)&all, (long)&before, 8);
    long child = call(SYS_fork, 0, 0, 0, 0);
    if (child < 0)
        call(SYS_exit_group, 125, 0, 0, 0);
    if (!child) {
        int self = call(SYS_getpid, 0, 0, 0, 0);
        call(SYS_setpgid, 0, 0, 0, 0);
        call(SYS_ioctl, 0, TIOCSPGRP, (long)&self, 0);
        call(SYS_rt_sigprocmask, SIG_SETMASK, (long)&before, 0, 8);
        limit(RLIMIT_NOFILE, argv[1]);
        limit(RLIMIT_FSIZE, argv[2]);
        become(program, envp);
    }
    for (;;) {
        long number = call(SYS_rt_sigtimedwait, (long)&all, 0, 0, 8);
        if (number == SIGTERM)
            call(SYS_kill, -1, SIGTERM, 0, 0);
        else if (number > 0 && number != SIGCHLD)
            call(SYS_kill, child, number, 0, 0);
        long ended;
        while ((ended = call(SYS_wait4, -1, (long)&status, WNOHANG, 0)) > 0)
            if (ended == child)
                call(SYS_exit_group, status & 127 ? 128 + (status & 127) : status >> 8 & 255, 0, 0, 0);
    }
}

__asm__(".section .text.first\n.globl _start\n_start:\n mov %rsp, %rdi\n and $-16, %rsp\n call begin\n");
