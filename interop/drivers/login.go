// What the Go drivers show to come in (interop/logins.py); nil where the cluster asks nobody.

package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"os"
)

type login struct {
	Ca        string `json:"ca"`
	Keystore  string `json:"keystore"`
	Mechanism string `json:"mechanism"`
	User      string `json:"user"`
	Secret    string `json:"secret"`
	Token     string `json:"token"`
}

func myLogin() *login {
	told := os.Getenv("INTEROP_LOGIN")
	if told == "" {
		return nil
	}
	made := &login{}
	if err := json.Unmarshal([]byte(told), made); err != nil {
		panic(err)
	}
	return made
}

func (l *login) tls() *tls.Config {
	pem, err := os.ReadFile(l.Ca)
	if err != nil {
		panic(err)
	}
	made := &tls.Config{RootCAs: x509.NewCertPool()}
	made.RootCAs.AppendCertsFromPEM(pem)
	if l.Keystore != "" {
		shown, err := tls.LoadX509KeyPair(l.Keystore, l.Keystore)
		if err != nil {
			panic(err)
		}
		made.Certificates = []tls.Certificate{shown}
	}
	return made
}
