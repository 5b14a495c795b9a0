package app

import (
	"fmt"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/catalog"
	"github.com/flexinfer/caddy-flexinfer/modules/routing"
	"github.com/flexinfer/caddy-flexinfer/modules/sources"
)

// clusterSources returns the sources of the models that the cluster of the
// configuration has by itself; none without one.
func (a *App) clusterSources(ctx caddy.Context) ([]routing.Source, error) {
	if a.Kubernetes == nil {
		return nil, nil
	}
	if err := a.useCluster(ctx); err != nil {
		return nil, err
	}
	r := a.cluster.Resources(a.StalledLoad(), a.policyOf(nil).ColdStart)
	a.starters = append(a.starters, r)
	return []routing.Source{r}, nil
}

// useCluster sets up the cluster, unless it has been.
func (a *App) useCluster(ctx caddy.Context) error {
	if a.cluster != nil {
		return nil
	}
	c := a.Kubernetes
	if c == nil {
		c = new(sources.Cluster)
	}
	if err := c.Provision(ctx); err != nil {
		return fmt.Errorf("kubernetes: %w", err)
	}
	a.cluster = c
	return nil
}

// A connector is a module that needs the cluster.
type connector interface{ Connect(*sources.Cluster) }

// adopt gives a module what it needs of the app, and notes whether Start starts
// it.
func (a *App) adopt(ctx caddy.Context, module any) error {
	if c, ok := module.(connector); ok {
		if err := a.useCluster(ctx); err != nil {
			return err
		}
		c.Connect(a.cluster)
	}
	if st, ok := module.(routing.Starter); ok {
		a.starters = append(a.starters, st)
	}
	return nil
}

// ProxiesServices reports whether CatalogOfService was called.
func (a *App) ProxiesServices() bool { return a.proxiesServices }

// CatalogOfService returns a catalog of one model, called as the Service is: the
// endpoints of the module flexinfer.sources.kubernetes with this configuration.
// The app keeps it up to date and closes it.
func (a *App) CatalogOfService(ctx caddy.Context, k *sources.Kubernetes) (*catalog.Catalog, error) {
	v, err := ctx.LoadModuleByID("flexinfer.sources.kubernetes", caddyconfig.JSON(k, nil))
	if err != nil {
		return nil, err
	}
	s := v.(routing.Source)
	if err := a.adopt(ctx, s); err != nil {
		return nil, err
	}
	a.proxiesServices = true
	return a.newCatalog(&catalog.Config{
		Models: []catalog.Declaration{{
			Name: k.Namespace + "/" + k.Service, Sources: []routing.Source{s},
			Strategy: a.strategy, StrategyName: a.strategyName, Policy: a.policyOf(nil),
		}},
		Strategy: a.strategy, StrategyName: a.strategyName,
	}), nil
}
