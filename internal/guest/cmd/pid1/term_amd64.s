//go:build linux

#include "textflag.h"

// The kernel calls this on a signal stack with the number in DI and the siginfo in
// SI. It uses no stack, no g and no Go: whatever it interrupted comes back as it was.
// si_code is at offset 8, si_pid at 16.
TEXT termHandler<>(SB),NOSPLIT|NOFRAME,$0-0
	MOVL	8(SI), AX
	TESTL	AX, AX		// SI_USER: a plain kill
	JNE	done
	MOVL	16(SI), AX
	TESTL	AX, AX		// from a process that has no number here
	JNE	done
	MOVL	·termEvent(SB), DI
	LEAQ	termOne<>(SB), SI
	MOVL	$8, DX
	MOVL	$1, AX		// write
	SYSCALL
done:
	RET

TEXT termReturn<>(SB),NOSPLIT|NOFRAME,$0-0
	MOVL	$15, AX		// rt_sigreturn
	SYSCALL
	INT	$3

// func termAction() (handler, restorer uintptr)
TEXT ·termAction(SB),NOSPLIT,$0-16
	LEAQ	termHandler<>(SB), AX
	MOVQ	AX, handler+0(FP)
	LEAQ	termReturn<>(SB), AX
	MOVQ	AX, restorer+8(FP)
	RET

DATA	termOne<>+0(SB)/8, $1
GLOBL	termOne<>(SB), RODATA, $8
