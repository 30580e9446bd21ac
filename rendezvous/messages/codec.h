// SPDX-License-Identifier: Apache-2.0
// Encodes and decodes control messages as JSON (docs/internals/rendezvous.md has the grammar). The
// input may be hostile: its size, depth, types and ranges are checked. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "rendezvous/messages/messages.h"

namespace ddprun::membership {

inline constexpr std::size_t kMaxMessageBytes = std::size_t{1} << 20;
inline constexpr std::size_t kMaxTextBytes = 64 << 10;  // of one string; a longer one is refused
// Both sides cut texts for people. A host name has at most 256 bytes; topology, program, role and
// each of last_lines 1 KiB; any other text 4 KiB. So the texts that one agent sends to all nodes
// have less than 64 KiB.
inline constexpr int kMaxNodes = 1'000'000;
inline constexpr int kMaxWorkersPerNode = 65'536;

// Text that isn't valid UTF-8 (a worker's output) is sent with U+FFFD for each bad byte. last_lines
// are shortened so that the message stays below kMaxMessageBytes. A number out of the decoder's
// range becomes the nearest limit. Else the message would be refused, and sent again and again.
std::string encode(const AgentEnvelope& envelope);
std::string encode(const RendezvousEnvelope& envelope);

// Returns the message's field "type": "join", "welcome", …
const char* type_of(const AgentMessage& message);
const char* type_of(const RendezvousMessage& message);

// Throws Error(kProtocol) with one line that says what is wrong and in which field.
AgentEnvelope decode_agent_message(std::string_view text);
RendezvousEnvelope decode_rendezvous_message(std::string_view text);

// Read messages from the journal's rows, which an older ddprund may have written. A field that is
// missing keeps its default, and an unknown one is skipped. Each throws Error(kProtocol) if the
// text is no such message, or if a value is out of range.
Join read_kept_join(std::string_view text);
WorkerFailure read_kept_failure(std::string_view text);
RendezvousMessage read_kept_message(std::string_view text);

}  // namespace ddprun::membership
