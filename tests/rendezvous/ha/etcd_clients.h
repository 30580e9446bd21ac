// SPDX-License-Identifier: Apache-2.0
// A cluster of one that is ready, and clients of it.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "rendezvous/ha/etcd_client.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/etcd_process.h"

namespace ddprun::ha::testing {

// Options of a patient client, for an etcd that starts, and for a busy machine.
inline EtcdOptions patient(std::vector<Endpoint> endpoints) {
  EtcdOptions options;
  options.endpoints = std::move(endpoints);
  options.request_limit = std::chrono::seconds(5);
  options.call_limit = std::chrono::seconds(30);
  return options;
}

inline EtcdOptions hasty(std::vector<Endpoint> endpoints) {
  EtcdOptions options;
  options.endpoints = std::move(endpoints);
  options.request_limit = std::chrono::milliseconds(100);
  options.call_limit = std::chrono::milliseconds(150);
  return options;
}

// The message of a hasty client's call. It tries again if the machine stood still, because the
// message is then another one.
template <typename Call>
std::string unavailable_of(Call call, const std::string& part) {
  std::string what;
  for (int i = 0; i < 10 && what.find(part) == std::string::npos; ++i) {
    CHECK(test::code_of(call, &what) == ErrorCode::kUnavailable);
  }
  return what;
}

// Waits until the cluster answers.
inline void await_ready(const std::vector<Endpoint>& endpoints) {
  EtcdClient(patient(endpoints)).get("ready");
}

struct OneEtcd {
  OneEtcd() : cluster(1) { await_ready(cluster.endpoints()); }
  EtcdOptions options() const { return patient(cluster.endpoints()); }

  test::EtcdCluster cluster;
};

}  // namespace ddprun::ha::testing
