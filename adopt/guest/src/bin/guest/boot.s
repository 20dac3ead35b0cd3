# From the loader to Rust, on the first CPU and on the others.
#
# The note makes a loader enter `start` in 32-bit mode, with paging off and the address of its data in %ebx (PVH). The
# other CPUs begin in 16-bit mode at START, to where the first one copied `others`. Both paths meet in `long_mode`.
.section .note.pvh, "a", @note
.balign 4
.long 4, 4, 18                  # sizes of name and contents; XEN_ELFNOTE_PHYS32_ENTRY
.asciz "Xen"
.long start

# All of the first 4 GiB at its own addresses, in pages of 2 MiB; above 3 GiB are registers of devices, not cached.
# `root` is also the root of the tables that the guest maps in later.
.section .data.tables, "aw"
.balign 4096
root:       .quad directories + 3
            .fill 511, 8, 0
directories: .quad pages + 3, pages + 0x1003, pages + 0x2003, pages + 0x3003
            .fill 508, 8, 0
.set at, 0x83
pages:
.rept 2048
.if at < 0xc0000000
            .quad at
.else
            .quad at + 0x10
.endif
.set at, at + 0x200000
.endr
gdt:        .quad 0, 0x00af9b000000ffff, 0x00cf93000000ffff, 0x00cf9b000000ffff # 8: code, 16: data, 24: code of 32 bits
gdt_pointer: .word 31
            .long gdt
next_cpu:   .long 0
.section .bss.stacks, "aw", @nobits
.balign 16
stacks:     .skip CPUS * 0x10000
.section .text.boot, "ax"
.code32
.global start, root, others, others_end
start:
  cli
  cld
  lgdt gdt_pointer
long_mode:                              # %ebx is the address of the loader's data, or 0 on the other CPUs
  movl $0x20, %eax                      # PAE; no global pages
  movl %eax, %cr4
  movl $root, %eax
  movl %eax, %cr3
  movl $0xc0000080, %ecx                # EFER: LME, NXE
  rdmsr
  orl $0x900, %eax
  wrmsr
  movl $0x80010001, %eax                # PG, WP, PE
  movl %eax, %cr0
  ljmp $8, $entry
.code64
entry:
  movl $16, %eax
  movw %ax, %ds
  movw %ax, %es
  movw %ax, %ss
  movl $1, %edi
  lock xaddl %edi, next_cpu(%rip)       # the first argument: the number of this CPU
  cmpl $CPUS, %edi
  jae halt                              # there is no stack for it
  leal 1(%rdi), %eax
  shll $16, %eax
  leaq stacks(%rip), %rsp
  addq %rax, %rsp
  movl %ebx, %esi                       # the second: the data
  call enter
halt:
  cli
  hlt
  jmp halt
.section .rodata.others, "a"
.code16
others:
  cli
  cld
  xorl %ebx, %ebx
  movw %bx, %ds
  lgdtl START + (others_gdt - others)
  movl $1, %eax                         # PE
  movl %eax, %cr0
  ljmpl $24, $START + (others32 - others)
.code32
others32:
  movl $16, %eax
  movw %ax, %ds
  movw %ax, %ss
  movl $long_mode, %eax
  jmp *%eax
others_gdt: .word 31
            .long gdt
others_end:
.code64
