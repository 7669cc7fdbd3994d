package archive

import (
	"fmt"
	"strconv"
	"strings"
)

// A Piece is a part of a sparse file that is not a hole.
type Piece struct{ Offset, Length int64 }

// maxPieces bounds the list of pieces. A file with more is packed without holes.
const maxPieces = 10000

// Whole reports whether pieces are one that is a file of that size: it has no holes.
func Whole(pieces []Piece, size int64) bool {
	return len(pieces) == 1 && pieces[0] == Piece{0, size}
}

// SparseRecord describes a file with holes: its size, then offset and length of each piece.
func SparseRecord(size int64, pieces []Piece) string {
	b := strconv.AppendInt(nil, size, 10)
	for _, p := range pieces {
		b = append(b, ';')
		b = strconv.AppendInt(b, p.Offset, 10)
		b = append(b, ',')
		b = strconv.AppendInt(b, p.Length, 10)
	}
	return string(b)
}

// ParseSparse reads such a record, and checks that the pieces are in order, within the file
// and stored bytes in total.
func ParseSparse(record string, stored int64) (size int64, pieces []Piece, err error) {
	bad := fmt.Errorf("%w: list of holes", ErrFormat)
	list := strings.Split(record, ";")
	if len(list) > maxPieces+1 {
		return 0, nil, bad
	}
	if size, err = strconv.ParseInt(list[0], 10, 64); err != nil || size < 0 {
		return 0, nil, bad
	}
	end, sum := int64(0), int64(0)
	for _, text := range list[1:] {
		a, b, ok := strings.Cut(text, ",")
		offset, err1 := strconv.ParseInt(a, 10, 64)
		length, err2 := strconv.ParseInt(b, 10, 64)
		if !ok || err1 != nil || err2 != nil || offset < end || length < 0 || length > size || offset > size-length {
			return 0, nil, bad
		}
		end = offset + length
		sum += length
		pieces = append(pieces, Piece{offset, length})
	}
	if sum != stored {
		return 0, nil, bad
	}
	return size, pieces, nil
}
