// SPDX-License-Identifier: Apache-2.0
// etcd's v3 API in its JSON gateway's form: requests as text, answers as values. There keys and
// values are base64, 64-bit numbers are strings, and zero fields are left out. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/error.h"
#include "rendezvous/ha/key_store.h"

namespace ddprun::ha {

struct RangeAnswer {
  std::int64_t revision = 0;
  std::vector<KeyValue> keys;
  bool more = false;  // there are further keys
};

// One line of a watch's answer.
struct WatchNews {
  bool erased = false;
  bool cancelled = false;  // the watch has ended: the wanted revisions are no longer kept
};

// etcd refused the request. The code is gRPC's.
class EtcdRefusal : public Error {
 public:
  EtcdRefusal(int grpc_code, const std::string& message)
      : Error(ErrorCode::kUnavailable, message), grpc_code_(grpc_code) {}
  // Returns whether another member, or the same one later, may accept the request.
  bool is_passing() const;
  bool is_not_found() const { return grpc_code_ == 5; }      // no such lease
  bool is_out_of_range() const { return grpc_code_ == 11; }  // revision no longer kept
  int grpc_code() const { return grpc_code_; }

 private:
  int grpc_code_;
};

// Returns the first key after all keys that begin with `prefix`.
std::string end_of_prefix(std::string prefix);

// Asks for the keys in [key, end), or for `key` alone if `end` is empty. At most `limit` of them
// are wanted; 0: all. They are read as of `revision`; 0: now.
std::string range_request(std::string_view key, std::string_view end = {}, std::int64_t limit = 0,
                          std::int64_t revision = 0);
std::string txn_request(const std::vector<Guard>& guards, const std::vector<KeyChange>& changes);
std::string grant_request(std::int64_t ttl_seconds);
std::string lease_request(std::int64_t lease);  // to keep it alive or to revoke it
std::string compaction_request(std::int64_t revision);
// Asks to watch the erasures of `key` from `revision` on.
std::string erasures_request(std::string_view key, std::int64_t revision);

// Each throws EtcdRefusal if etcd refused, and Error(kProtocol) if the answer isn't etcd's.
RangeAnswer parse_range(std::string_view answer);
TxnResult parse_txn(std::string_view answer, std::size_t num_guards);
std::int64_t parse_grant(std::string_view answer);
void parse_done(std::string_view answer);
bool parse_keep_alive(std::string_view answer);  // false: the lease has ended
WatchNews parse_watch(std::string_view line);
// Throws Error(kProtocol) if the answer is no refusal.
EtcdRefusal parse_refusal(std::string_view answer);

}  // namespace ddprun::ha
