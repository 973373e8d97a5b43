// How franz-go logs in.

package main

import (
	"context"
	"errors"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

func loginOptions() []kgo.Opt {
	shown := myLogin()
	if shown == nil {
		return nil
	}
	options := []kgo.Opt{kgo.DialTLSConfig(shown.tls())}
	var mechanism sasl.Mechanism
	switch shown.Mechanism {
	case "SCRAM-SHA-256":
		mechanism = scram.Auth{User: shown.User, Pass: shown.Secret}.AsSha256Mechanism()
	case "SCRAM-SHA-512":
		mechanism = scram.Auth{User: shown.User, Pass: shown.Secret}.AsSha512Mechanism()
	case "OAUTHBEARER":
		mechanism = oauth.Auth{Token: shown.Token}.AsMechanism()
	default:
		return options
	}
	return append(options, kgo.SASL(mechanism))
}

// A producer that cannot log in tries until its time is over; why is what a ping tells.
func whyNot(client *kgo.Client, err error) error {
	if myLogin() == nil || !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), wait/4)
	defer cancel()
	if refusal := client.Ping(ctx); refusal != nil {
		return refusal
	}
	return err
}
