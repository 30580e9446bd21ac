// SPDX-License-Identifier: Apache-2.0
// The frames of /v1/mirror (docs/ha-mirror.md has the grammar). Either side may be hostile: sizes,
// types and ranges are checked, nothing else is trusted. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "rendezvous/ha/leader_rows.h"

namespace ddprun::ha {

inline constexpr char kMirrorPath[] = "/v1/mirror";
inline constexpr int kMirrorVersion = 1;
inline constexpr std::size_t kMaxMirrorTextBytes = 4096;
inline constexpr std::size_t kMaxPartBytes = std::size_t{256} << 10;  // of rows, in one part
inline constexpr std::size_t kPartHeaderBytes = 18;
// Of parts that the standby has not `got`.
inline constexpr std::size_t kMirrorWindowBytes = std::size_t{2} << 20;

namespace mirror {

// Who a side is, and how it is doing; the caller says it first. Of another version only the name
// is known.
struct Hello {
  int version = kMirrorVersion;
  PairState state;
};

// The caller's, which becomes a standby by the second one.
struct Mirror {};
struct Got {
  std::uint64_t bytes = 0;  // of binary frames, since the connection began
};
struct Ack {
  std::uint64_t number = 0;  // of a transfer
};
struct Leaves {};  // its rows are a copy from now on: it never goes on with them
using CallerMessage = std::variant<Hello, Mirror, Got, Ack, Leaves>;

// Of who was called, which is a leader from the second one on.
struct Welcome {
  std::string boot;  // common/boot_id.h: whose the parts' clock is
};
struct Refused {
  std::string reason;
};
struct InSync {
  TermId term;
  TermLine line;  // begins with it
};
struct Yours {};  // it tells nobody anything any more: the standby may go on at once
using CalledMessage = std::variant<Hello, Welcome, Refused, InSync, Yours>;

enum class Transfer { kSnapshot, kBatch };

struct Part {
  Transfer transfer = Transfer::kBatch;
  bool is_last = false;
  std::uint64_t number = 0;       // of the transfer, from 1
  std::int64_t monotonic_ns = 0;  // the leader's clock
  std::string_view rows = {};     // at most kMaxPartBytes of them
};

// Texts for people are cut at 256 bytes, a reason at 1 KiB.
std::string encode(const CallerMessage& message);
std::string encode(const CalledMessage& message);
std::string encode(const Part& part);

// Throw Error(kProtocol) with one line: what is wrong and at which field.
CallerMessage decode_caller_message(std::string_view text);
CalledMessage decode_called_message(std::string_view text);
Part decode_part(std::string_view bytes);  // its rows are `bytes`'

}  // namespace mirror
}  // namespace ddprun::ha
