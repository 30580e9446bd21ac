// SPDX-License-Identifier: Apache-2.0
// Control messages as JSON (docs/internals/rendezvous.md has the grammar). The input may be
// hostile: size, depth, types and ranges are checked, nothing else is trusted. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "rendezvous/messages/messages.h"

namespace ddprun::membership {

inline constexpr std::size_t kMaxMessageBytes = std::size_t{1} << 20;
inline constexpr std::size_t kMaxTextBytes = 64 << 10;  // of one string; longer ones are refused
// Texts for people are cut, on both sides. A host name is cut after 256 bytes; topology, program,
// role and each of last_lines after 1 KiB; the others after 4 KiB. So what one agent says to all is
// below 64 KiB.
inline constexpr int kMaxNodes = 1'000'000;
inline constexpr int kMaxWorkersPerNode = 65'536;

// Text that isn't valid UTF-8 (a worker's output) is sent with U+FFFD for each bad byte. last_lines
// are shortened so that the message stays below kMaxMessageBytes. Numbers out of the range that the
// decoder takes become its limit: a message that was refused would be sent again and again.
std::string encode(const AgentEnvelope& envelope);
std::string encode(const RendezvousEnvelope& envelope);

// "join", "welcome", …: the field "type".
const char* type_of(const AgentMessage& message);
const char* type_of(const RendezvousMessage& message);

// Throws Error(kProtocol) with one line: what is wrong and at which field.
AgentEnvelope decode_agent_message(std::string_view text);
RendezvousEnvelope decode_rendezvous_message(std::string_view text);

// Messages in the journal's rows, which an older ddprund may have written. A field that it did not
// know keeps its default; one that is unknown here is skipped. Each throws Error(kProtocol) where
// the text is no such message, or a value is out of range.
Join read_kept_join(std::string_view text);
WorkerFailure read_kept_failure(std::string_view text);
RendezvousMessage read_kept_message(std::string_view text);

}  // namespace ddprun::membership
