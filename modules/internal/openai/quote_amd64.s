//go:build !purego

#include "textflag.h"

// func indexQuote(b []byte) int
//
// It needs no more than SSE2, which every amd64 has. Registers of the loop:
//	SI  the block      X6   quotes          R12  0xaaaa…
//	DI  the end        X7   backslashes     R13  1 if the block's first byte
//	BX  the beginning                            is escaped, else 0
TEXT ·indexQuote(SB), NOSPLIT, $0-32
	MOVQ b_base+0(FP), SI
	MOVQ b_len+8(FP), DI
	MOVQ SI, BX
	ANDQ $~63, DI
	ADDQ SI, DI
	MOVQ $0x2222222222222222, AX
	MOVQ AX, X6
	PUNPCKLQDQ X6, X6
	MOVQ $0x5c5c5c5c5c5c5c5c, AX
	MOVQ AX, X7
	PUNPCKLQDQ X7, X7
	MOVQ $0xaaaaaaaaaaaaaaaa, R12
	XORQ R13, R13

block:
	CMPQ SI, DI
	JAE  done
	MOVOU (SI), X0
	MOVOU 16(SI), X1
	MOVOU 32(SI), X2
	MOVOU 48(SI), X3
	MOVO  X0, X8
	MOVO  X1, X9
	MOVO  X2, X10
	MOVO  X3, X11

	// R8: one bit for each byte that is a quote.
	PCMPEQB  X6, X8
	PCMPEQB  X6, X9
	PCMPEQB  X6, X10
	PCMPEQB  X6, X11
	PMOVMSKB X8, R8
	PMOVMSKB X9, R9
	PMOVMSKB X10, R10
	PMOVMSKB X11, R11
	SHLQ     $16, R9
	SHLQ     $32, R10
	SHLQ     $48, R11
	ORQ      R9, R8
	ORQ      R11, R10
	ORQ      R10, R8

	// AX: one for each backslash.
	PCMPEQB  X7, X0
	PCMPEQB  X7, X1
	PCMPEQB  X7, X2
	PCMPEQB  X7, X3
	PMOVMSKB X0, AX
	PMOVMSKB X1, CX
	PMOVMSKB X2, DX
	PMOVMSKB X3, R9
	SHLQ     $16, CX
	SHLQ     $32, DX
	SHLQ     $48, R9
	ORQ      CX, AX
	ORQ      R9, DX
	ORQ      DX, AX

	// Of a run of backslashes the first, third … escape what follows them.
	// Subtracting the runs from their bits shifted by one carries through
	// each run; with the odd bits set, it leaves of each run the escaping
	// backslashes, and the byte behind it if that is escaped. CX: the runs,
	// without a backslash that is escaped itself. DX: that result.
	MOVQ R13, CX
	NOTQ CX
	ANDQ AX, CX
	LEAQ (CX)(CX*1), DX
	ORQ  R12, DX
	SUBQ CX, DX
	XORQ R12, DX

	// R13: what is escaped.
	ORQ  AX, R13
	XORQ DX, R13
	NOTQ R13
	ANDQ R13, R8
	JNE  found

	// The last byte escapes the next block's first.
	ANDQ AX, DX
	SHRQ $63, DX
	MOVQ DX, R13
	ADDQ $64, SI
	JMP  block

found:
	BSFQ R8, R8
	ADDQ R8, SI

done:
	SUBQ BX, SI
	MOVQ SI, ret+24(FP)
	RET
