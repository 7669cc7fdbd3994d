//go:build linux

#include "textflag.h"

// The kernel calls this on a signal stack with the number in R0 and the siginfo in
// R1; LR returns to the kernel. It uses no stack, no g and no Go: whatever it
// interrupted comes back as it was. si_code is at offset 8, si_pid at 16.
TEXT termHandler<>(SB),NOSPLIT|NOFRAME,$0-0
	MOVW	8(R1), R2
	CBNZ	R2, done	// SI_USER: a plain kill
	MOVW	16(R1), R2
	CBNZ	R2, done	// from a process that has no number here
	MOVW	·termEvent(SB), R0
	MOVD	$termOne<>(SB), R1
	MOVD	$8, R2
	MOVD	$64, R8		// write
	SVC
done:
	RET

TEXT termReturn<>(SB),NOSPLIT|NOFRAME,$0-0
	MOVD	$139, R8	// rt_sigreturn
	SVC
	BRK

// func termAction() (handler, restorer uintptr)
TEXT ·termAction(SB),NOSPLIT,$0-16
	MOVD	$termHandler<>(SB), R0
	MOVD	R0, handler+0(FP)
	MOVD	$termReturn<>(SB), R0
	MOVD	R0, restorer+8(FP)
	RET

DATA	termOne<>+0(SB)/8, $1
GLOBL	termOne<>(SB), RODATA, $8
