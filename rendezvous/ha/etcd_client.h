// SPDX-License-Identifier: Apache-2.0
// A client of etcd (v3 API, 3.4 or later) over its JSON gateway: keys, leases, transactions.
// Blocking; one thread at a time, except for cancel().
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/endpoint.h"
#include "rendezvous/ha/key_store.h"
#include "rendezvous/security/tls.h"

namespace ddprun::ha {

struct EtcdOptions {
  std::vector<Endpoint> endpoints;  // members of one cluster; at least one
  security::TlsContext tls;         // null: no TLS; certificates must name their endpoint's host
  // If an endpoint is silent for so long, the client goes to the next one. The limit applies to
  // connecting, to writing a request, and to each wait for more of an answer.
  std::chrono::milliseconds request_limit{1'000};
  // The limit of one call, which tries the endpoints in turn, again and again.
  std::chrono::milliseconds call_limit{3'000};
};

// Every call begins with the endpoint that answered last, and may throw
//  - Error(kUnavailable): no endpoint did the request; one line has each endpoint's problem. The
//    request may have taken effect, or may still do so. Also if etcd refuses: "mvcc: database space
//    exceeded";
//  - Error(kProtocol): the endpoints answer, but none is an etcd;
//  - Error(kAborted): cancel() was called.
// A request without an answer is sent again to the next endpoint.
class EtcdClient : public KeyStore {
 public:
  explicit EtcdClient(EtcdOptions options);
  ~EtcdClient() override;

  // Returns the lease's id. If the answer is lost, the lease ends by itself after `ttl`.
  std::int64_t grant_lease(std::chrono::seconds ttl);
  bool keep_alive(std::int64_t lease,
                  Deadline limit = Deadline::after(std::chrono::hours(1)));  // false: it has ended
  void revoke(std::int64_t lease);                                           // no error if ended

  TxnResult change_if(const std::vector<Guard>& guards,
                      const std::vector<KeyChange>& changes) override;
  std::vector<KeyValue> get_prefix(const std::string& prefix) override;
  void compact(std::int64_t revision) override;
  // Returns the present value.
  std::optional<KeyValue> get(const std::string& key,
                              Deadline limit = Deadline::after(std::chrono::hours(1)));

  // Waits until `key`, which existed at `after_revision`, has been erased, or until the deadline.
  // It uses etcd's watch and doesn't poll. A member that has lost the others is silent for ever,
  // just like one without news. So callers should wait for seconds only and call again: each call
  // asks the majority first.
  void await_erased(const std::string& key, std::int64_t after_revision, Deadline deadline);

  void cancel() override;

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace ddprun::ha
