package main

import (
	"fmt"
	"strconv"
	"strings"
)

// minBody is the size of the smallest body that makeChats makes.
const minBody = 1024

// sentences have the characters that the text of real chats has, as clients
// write them into JSON: line breaks and quotation marks as escapes, and other
// scripts and signs as escapes (Python) or as they are (JavaScript).
var sentences = []string{
	`The function returns early when the slice is empty, which is why the caller sees \"nil\" and not an error.\n`,
	"```go\\nfunc (s *Store) Get(key string) (string, error) {\\n\\tv, ok := s.items[key]\\n\\tif !ok {\\n\\t\\treturn \\\"\\\", ErrNotFound\\n\\t}\\n\\treturn v, nil\\n}\\n```\\n\\n",
	`Please compare it with what we had in March: the caf\u00e9 in K\u00f6ln sold 1,200 cups a week, that is \u20ac 3.10 each.\n`,
	`Кратко: сервер принимает запрос, ищет ключ и отвечает. `,
	`She said \"no, not before Tuesday\", and that was that \ud83d\ude42. `,
	`- first item\n- second item, with a path: C:\\Users\\me\\notes.txt\n- third item\n\n`,
	`为了比较两种方法，我们需要同样的数据和同样的时间。`,
	`In plain prose there is little to escape, and a long paragraph of it goes by without a single backslash, as most paragraphs do. `,
}

// chat is one request, ready to be sent to any proxy.
type chat struct {
	session string
	body    []byte
}

// request returns the bytes of the request as sent to host.
func (c *chat) request(host string, extra ...string) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "POST /v1/chat/completions HTTP/1.1\r\nHost: %s\r\nUser-Agent: bench\r\nContent-Type: application/json\r\n", host)
	fmt.Fprintf(&b, "Authorization: Bearer none\r\nX-Session-ID: %s\r\nContent-Length: %d\r\n", c.session, len(c.body))
	for _, field := range extra {
		b.WriteString(field + "\r\n")
	}
	b.WriteString("\r\n")
	b.Write(c.body)
	return []byte(b.String())
}

// makeChats returns n chats with bodies of size bytes. Each has a system
// prompt and a session of its own, so that a proxy that routes by either has
// as many keys.
func makeChats(n, size int) []*chat {
	chats := make([]*chat, n)
	for i := range chats {
		chats[i] = &chat{session: fmt.Sprintf("session-%04d", i), body: makeBody(i, size)}
	}
	return chats
}

// makeBody returns the body of chat i: a system prompt of at most 1 KB, and
// then turns, half of whose text is the assistant's.
func makeBody(i, size int) []byte {
	const head, tail = `{"model":"` + modelName + `","temperature":0.7,"max_tokens":256,"stream":false,"messages":[`, `]}`
	b := make([]byte, 0, size)
	b = append(b, head...)
	b = append(b, `{"role":"system","content":"You are assistant `...)
	b = strconv.AppendInt(b, int64(i), 10)
	b = append(b, ` of the team.\n`...)
	b = fill(b, i, min(size/4, 1024))

	turn := 0
	role := "user"
	for {
		next := `"},{"role":"` + role + `","content":"`
		left := size - len(b) - len(next) - len(`"}`) - len(tail)
		if left < 200 {
			break
		}
		b = append(b, next...)
		if left > 4096 {
			left = 2048
		}
		b = fill(b, i+turn, len(b)+left)
		turn++
		if role = "user"; turn%2 == 1 {
			role = "assistant"
		}
	}
	for len(b) < size-len(`"}`)-len(tail) {
		b = append(b, ' ')
	}
	b = append(b, `"}`...)
	return append(b, tail...)
}

// fill appends whole sentences to b while it stays within end.
func fill(b []byte, first, end int) []byte {
	for i := 0; ; i++ {
		s := sentences[(first+i)%len(sentences)]
		if len(b)+len(s) > end {
			return b
		}
		b = append(b, s...)
	}
}

func sizeName(size int) string {
	if size%1024 == 0 {
		return fmt.Sprintf("%d KB", size/1024)
	}
	return fmt.Sprintf("%d B", size)
}
