// SPDX-License-Identifier: Apache-2.0
// etcd's v3 API as its JSON gateway speaks it: requests as text, answers as values. Keys and values
// are base64 there, 64-bit numbers strings, and fields that are zero are left out. Pure.
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
  bool more = false;  // there are further ones behind
};

// One line of a watch's answer.
struct WatchNews {
  bool erased = false;
  bool cancelled = false;  // nothing comes any more: what it asked for is no longer kept
};

// etcd understood, and said no. Its code is gRPC's.
class EtcdRefusal : public Error {
 public:
  EtcdRefusal(int grpc_code, const std::string& message)
      : Error(ErrorCode::kUnavailable, message), grpc_code_(grpc_code) {}
  // Another member, or the same one later, may do it.
  bool is_passing() const;
  bool is_not_found() const { return grpc_code_ == 5; }      // of a lease
  bool is_out_of_range() const { return grpc_code_ == 11; }  // a revision that is no longer kept
  int grpc_code() const { return grpc_code_; }

 private:
  int grpc_code_;
};

// The first key behind all that begin with `prefix`.
std::string end_of_prefix(std::string prefix);

// The keys in [key, end), or `key` alone where `end` is empty; up to `limit` of them, 0: all; as of
// `revision`, 0: now.
std::string range_request(std::string_view key, std::string_view end = {}, std::int64_t limit = 0,
                          std::int64_t revision = 0);
std::string txn_request(const std::vector<Guard>& guards, const std::vector<KeyChange>& changes);
std::string grant_request(std::int64_t ttl_seconds);
std::string lease_request(std::int64_t lease);  // to keep alive, to revoke
std::string compaction_request(std::int64_t revision);
// Asks for the erasures of `key` from `revision` on.
std::string erasures_request(std::string_view key, std::int64_t revision);

// Each throws EtcdRefusal where that was the answer, Error(kProtocol) where it is none that etcd
// makes.
RangeAnswer parse_range(std::string_view answer);
TxnResult parse_txn(std::string_view answer, std::size_t num_guards);
std::int64_t parse_grant(std::string_view answer);
void parse_done(std::string_view answer);
bool parse_keep_alive(std::string_view answer);  // false: there is no such lease any more
WatchNews parse_watch(std::string_view line);
// Throws Error(kProtocol) where it is none.
EtcdRefusal parse_refusal(std::string_view answer);

}  // namespace ddprun::ha
