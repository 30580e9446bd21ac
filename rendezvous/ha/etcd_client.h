// SPDX-License-Identifier: Apache-2.0
// An etcd (v3, 3.4 or later), over its JSON gateway: keys, leases, transactions. Blocking; one
// thread at a time, but for cancel().
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
  security::TlsContext tls;         // null: without; a certificate is for its endpoint's host
  // An endpoint that says nothing for so long is left for the next one. That holds while it is
  // connected to, while a request is written, and in each wait for more of its answer.
  std::chrono::milliseconds request_limit{1'000};
  // For one call: until then it tries the endpoints in turn, again and again.
  std::chrono::milliseconds call_limit{3'000};
};

// Every call begins with the endpoint that answered last. Each throws
//  - Error(kUnavailable): no endpoint did it; one line names each and what happened. The request
//    may have taken effect, or may still do so. Also where etcd refuses: "mvcc: database space
//    exceeded";
//  - Error(kProtocol): what answers there (each of them) is no etcd;
//  - Error(kAborted): cancel() was called.
// A request that was not answered is made again at the next endpoint.
class EtcdClient : public KeyStore {
 public:
  explicit EtcdClient(EtcdOptions options);
  ~EtcdClient() override;
  EtcdClient(const EtcdClient&) = delete;
  EtcdClient& operator=(const EtcdClient&) = delete;

  // Its id. One whose answer was lost ends by itself after `ttl`.
  std::int64_t grant_lease(std::chrono::seconds ttl);
  bool keep_alive(std::int64_t lease,
                  Deadline limit = Deadline::after(std::chrono::hours(1)));  // false: it is over
  void revoke(std::int64_t lease);                                           // or it was over

  TxnResult change_if(const std::vector<Guard>& guards,
                      const std::vector<KeyChange>& changes) override;
  std::vector<KeyValue> get_prefix(const std::string& prefix) override;
  void compact(std::int64_t revision) override;
  // As of now.
  std::optional<KeyValue> get(const std::string& key,
                              Deadline limit = Deadline::after(std::chrono::hours(1)));

  // Returns when `key`, which was there at `after_revision`, has been erased since, at once where
  // it has been already; or at the deadline. Waits for etcd's word, doesn't ask again and again. A
  // member that has lost the others is silent for ever and can't be told from a quiet one. Give it
  // seconds, and call again, which asks the majority first.
  void await_erased(const std::string& key, std::int64_t after_revision, Deadline deadline);

  void cancel() override;

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace ddprun::ha
