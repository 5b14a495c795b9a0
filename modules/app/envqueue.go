package app

import (
	"errors"
	"strconv"
	"time"

	"github.com/caddyserver/caddy/v2"
)

func setQueueSize(a *App, value string) error {
	n, err := strconv.Atoi(value)
	if err != nil || n <= 0 {
		return errors.New("write a number above 0; the default stands")
	}
	if a.Queue = orZero(a.Queue); a.Queue.MaxSize == 0 {
		a.Queue.MaxSize = n
	}
	return nil
}

// setQueueTime returns what sets one of the times of the queue.
func setQueueTime(option func(*Queue) *caddy.Duration) func(*App, string) error {
	return func(a *App, value string) error {
		d, err := time.ParseDuration(value)
		if err != nil || d <= 0 {
			return errors.New("write a time above 0, such as 60s; the default stands")
		}
		a.Queue = orZero(a.Queue)
		if p := option(a.Queue); *p == 0 {
			*p = caddy.Duration(d)
		}
		return nil
	}
}

func setLabelGroups(a *App, value string) error {
	if err := CheckLabelGroups(value); err != nil {
		return err
	}
	if a.LabelGroups == "" {
		a.LabelGroups = value
	}
	return nil
}

// setBackoff takes how often waking is tried from the variables that speak of
// it together, if they turn that on.
func (a *App) setBackoff(values map[string]string) error {
	enabled, ok := values["PROXY_BACKOFF_ENABLED"]
	if !ok || !isOn(enabled) || a.Queue != nil && a.Queue.Backoff != nil {
		return nil
	}
	b := &Backoff{Retries: 3}
	if v, ok := values["PROXY_BACKOFF_MAX_RETRIES"]; ok {
		n, err := strconv.Atoi(v)
		if err != nil {
			return errors.New("PROXY_BACKOFF_MAX_RETRIES: write a number above 0")
		}
		b.Retries = n
	}
	for name, into := range map[string]*caddy.Duration{
		"PROXY_BACKOFF_INITIAL_WAIT": &b.Initial,
		"PROXY_BACKOFF_MAX_WAIT":     &b.Max,
	} {
		v, ok := values[name]
		if !ok {
			continue
		}
		d, err := time.ParseDuration(v)
		if err != nil || d <= 0 {
			return errors.New(name + ": write a time above 0, such as 5s")
		}
		*into = caddy.Duration(d)
	}
	if err := b.Check(); err != nil {
		return err
	}
	a.Queue = orZero(a.Queue)
	a.Queue.Backoff = b
	return nil
}
