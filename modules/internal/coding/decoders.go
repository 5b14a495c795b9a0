package coding

import (
	"bufio"
	"errors"
	"io"
	"maps"
	"sync"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zlib"
	"github.com/klauspost/compress/zstd"
)

// A decoder decodes one body after the other. At the end of a body it makes
// sure that nothing follows.
type decoder interface {
	io.Reader

	// reset begins a new body, or lets go of the last one if r is nil. It
	// may read from r.
	reset(r io.Reader) error
}

// pool keeps decoders, whose windows and tables are worth keeping.
type pool struct {
	free sync.Pool
	make func() decoder
}

func (p *pool) get() decoder {
	if d, ok := p.free.Get().(decoder); ok {
		return d
	}
	return p.make()
}

func (p *pool) put(d decoder) {
	if d.reset(nil) == nil {
		p.free.Put(d)
	}
}

// codings are the codings by their names in lower case. lenient differs where
// servers do what the standard does not allow.
var codings, lenient = func() (map[string]*pool, map[string]*pool) {
	gzips := &pool{make: func() decoder { return &gzipDecoder{in: bufio.NewReader(nil)} }}
	strict := map[string]*pool{
		"gzip":    gzips,
		"x-gzip":  gzips,
		"zstd":    {make: func() decoder { return new(zstdDecoder) }},
		"br":      {make: func() decoder { return new(brotliDecoder) }},
		"deflate": {make: func() decoder { return &zlibDecoder{in: bufio.NewReader(nil)} }},
	}
	lenient := maps.Clone(strict)
	lenient["deflate"] = &pool{make: func() decoder {
		return &deflateDecoder{zlibDecoder: zlibDecoder{in: bufio.NewReader(nil)}}
	}}
	return strict, lenient
}()

// errTrailing is the error of a body with more than what is encoded.
var errTrailing = errors.New("unexpected bytes behind the encoded data")

// gzipDecoder decodes the members of a gzip file, which are one body.
type gzipDecoder struct {
	in *bufio.Reader
	z  gzip.Reader
}

func (d *gzipDecoder) reset(r io.Reader) error {
	d.in.Reset(r)
	if r == nil {
		return nil
	}
	return d.next()
}

// next begins a member. It is not left to the reader, which takes some cut
// headers for the end.
func (d *gzipDecoder) next() error {
	err := d.z.Reset(d.in)
	d.z.Multistream(false)
	return noEOF(err)
}

func (d *gzipDecoder) Read(p []byte) (n int, err error) {
	for n == 0 && err == nil && len(p) > 0 {
		n, err = d.z.Read(p)
		if !errors.Is(err, io.EOF) {
			continue
		}
		if _, err = d.in.Peek(1); err == nil {
			err = d.next()
		}
	}
	return n, err
}

// zlibDecoder decodes what HTTP calls deflate.
type zlibDecoder struct {
	in *bufio.Reader
	z  io.ReadCloser
}

func (d *zlibDecoder) reset(r io.Reader) error {
	d.in.Reset(r)
	if r == nil {
		return nil
	}
	return d.begin()
}

func (d *zlibDecoder) begin() (err error) {
	if z, ok := d.z.(zlib.Resetter); ok {
		return z.Reset(d.in, nil)
	}
	d.z, err = zlib.NewReader(d.in)
	return err
}

func (d *zlibDecoder) Read(p []byte) (n int, err error) {
	if n, err = d.z.Read(p); errors.Is(err, io.EOF) {
		if _, err = d.in.Peek(1); err == nil {
			err = errTrailing
		}
	}
	return n, err
}

// deflateDecoder is a zlibDecoder that also decodes bare deflate, which some
// servers send under this name.
type deflateDecoder struct {
	zlibDecoder
	flate io.ReadCloser
	bare  bool
}

func (d *deflateDecoder) reset(r io.Reader) error {
	d.in.Reset(r)
	if r == nil {
		return nil
	}
	head, err := d.in.Peek(2)
	if err != nil {
		return err
	}
	d.bare = head[0]&0x0f != 8 || (int(head[0])<<8|int(head[1]))%31 != 0
	if !d.bare {
		return d.begin()
	}
	if z, ok := d.flate.(flate.Resetter); ok {
		return z.Reset(d.in, nil)
	}
	d.flate = flate.NewReader(d.in)
	return nil
}

func (d *deflateDecoder) Read(p []byte) (int, error) {
	if d.bare {
		return d.flate.Read(p)
	}
	return d.zlibDecoder.Read(p)
}

// zstdDecoder decodes on the reading goroutine. Larger windows than 8 MiB are
// not for HTTP (RFC 9659).
type zstdDecoder struct{ z *zstd.Decoder }

func (d *zstdDecoder) reset(r io.Reader) (err error) {
	if d.z != nil {
		return d.z.Reset(r)
	}
	d.z, err = zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(8<<20))
	return err
}

func (d *zstdDecoder) Read(p []byte) (int, error) { return d.z.Read(p) }

type brotliDecoder struct{ z *brotli.Reader }

func (d *brotliDecoder) reset(r io.Reader) error {
	if d.z != nil {
		return d.z.Reset(r)
	}
	d.z = brotli.NewReader(r)
	return nil
}

func (d *brotliDecoder) Read(p []byte) (int, error) { return d.z.Read(p) }

// Interface guards
var (
	_ decoder = (*gzipDecoder)(nil)
	_ decoder = (*zlibDecoder)(nil)
	_ decoder = (*deflateDecoder)(nil)
	_ decoder = (*zstdDecoder)(nil)
	_ decoder = (*brotliDecoder)(nil)
)
