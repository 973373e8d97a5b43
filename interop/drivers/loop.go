// What the Go drivers share: a command and an answer a line, both JSON; bytes are base64 or null.

package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
)

type record struct {
	Partition *int32   `json:"partition"`
	Offset    int64    `json:"offset"`
	Timestamp *int64   `json:"timestamp"`
	Key       *[]byte  `json:"key"`
	Value     *[]byte  `json:"value"`
	Headers   [][2]any `json:"headers"`
}

type command struct {
	Op          string            `json:"op"`
	Topic       string            `json:"topic"`
	Topics      []string          `json:"topics"`
	Partition   int32             `json:"partition"`
	Partitions  json.RawMessage   `json:"partitions"`
	Replication int16             `json:"replication"`
	Configs     map[string]string `json:"configs"`
	Total       int32             `json:"total"`
	Before      int64             `json:"before"`
	At          any               `json:"at"`
	Records     []record          `json:"records"`
	Acks        string            `json:"acks"`
	Codec       string            `json:"codec"`
	Idempotent  bool              `json:"idempotent"`
	Kept        bool              `json:"kept"`
	Offset      int64             `json:"offset"`
	Count       int               `json:"count"`
	TimeoutMs   int               `json:"timeout_ms"`
	Group       string            `json:"group"`
	Assignor    string            `json:"assignor"`
	Instance    *string           `json:"instance"`
	Protocol    string            `json:"protocol"`
	Offsets     map[int32]int64   `json:"offsets"`
	Id          string            `json:"id"`
	End         string            `json:"end"`
	Source      string            `json:"source"`
	Committed   bool              `json:"committed"`
}

type answer map[string]any

type unsupported string

func (reason unsupported) Error() string { return string(reason) }

func (c *command) partitionCount() int32 {
	var count int32
	json.Unmarshal(c.Partitions, &count)
	return count
}

func (c *command) partitionList() []int32 {
	var list []int32
	json.Unmarshal(c.Partitions, &list)
	return list
}

func plain(data *[]byte) []byte {
	if data == nil {
		return nil
	}
	if *data == nil {
		return []byte{}
	}
	return *data
}

func (r *record) headerPairs() map[int][2][]byte {
	pairs := map[int][2][]byte{}
	for number, each := range r.Headers {
		var value []byte
		if text, ok := each[1].(string); ok {
			json.Unmarshal([]byte(fmt.Sprintf("%q", text)), &value)
			if value == nil {
				value = []byte{}
			}
		}
		pairs[number] = [2][]byte{[]byte(each[0].(string)), value}
	}
	return pairs
}

func packed(data []byte) *[]byte {
	if data == nil {
		return nil
	}
	return &data
}

func serve(run func(*command) (answer, error), codeOf func(error) int) {
	lines := bufio.NewReaderSize(os.Stdin, 1<<20)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var given command
		var told answer
		if err = json.Unmarshal(line, &given); err == nil {
			told, err = run(&given)
		}
		var lacking unsupported
		reply := answer{"ok": told}
		if told == nil {
			reply["ok"] = answer{}
		}
		if errors.As(err, &lacking) {
			reply = answer{"unsupported": string(lacking)}
		} else if err != nil {
			reply = answer{"error": codeOf(err), "text": err.Error()}
		}
		text, _ := json.Marshal(reply)
		fmt.Println(string(text))
	}
}
