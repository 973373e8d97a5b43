// How kafka-go logs in: it has PLAIN and SCRAM, and takes OAUTHBEARER as a mechanism of one's own.

package main

import (
	"context"
	"net"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/sasl"
	"github.com/segmentio/kafka-go/sasl/scram"
)

type bearer string

func (bearer) Name() string { return "OAUTHBEARER" }

func (b bearer) Start(context.Context) (sasl.StateMachine, []byte, error) {
	return b, []byte("n,,\x01auth=Bearer " + string(b) + "\x01\x01"), nil
}

func (bearer) Next(_ context.Context, challenge []byte) (bool, []byte, error) {
	if len(challenge) > 0 { // the server's reasons: it waits for this byte before it refuses (RFC 7628)
		return false, []byte{1}, nil
	}
	return true, nil, nil
}

func comeIn() (*kafka.Transport, *kafka.Dialer) {
	transport := &kafka.Transport{MetadataTTL: 300 * time.Millisecond, ClientID: "interop"}
	dialer := &kafka.Dialer{Timeout: 10 * time.Second, DualStack: true, ClientID: "interop"}
	transport.Dial = (&net.Dialer{Timeout: 10 * time.Second}).DialContext
	shown := myLogin()
	if shown == nil {
		return transport, dialer
	}
	transport.TLS, dialer.TLS = shown.tls(), shown.tls()
	if shown.Mechanism == "" {
		return transport, dialer
	}
	var mechanism sasl.Mechanism
	switch shown.Mechanism {
	case "OAUTHBEARER":
		mechanism = bearer(shown.Token)
	default:
		hash := scram.SHA512
		if shown.Mechanism == "SCRAM-SHA-256" {
			hash = scram.SHA256
		}
		made, err := scram.Mechanism(hash, shown.User, shown.Secret)
		if err != nil {
			panic(err)
		}
		mechanism = made
	}
	transport.SASL, dialer.SASLMechanism = mechanism, mechanism
	return transport, dialer
}
