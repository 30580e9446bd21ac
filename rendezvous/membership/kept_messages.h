// SPDX-License-Identifier: Apache-2.0
// Messages as the journal's rows have them. Who wrote them may have been an older ddprund: what it
// did not know keeps its default, and what this one does not know any more is skipped. Pure.
#pragma once

#include <string_view>

#include "rendezvous/membership/messages.h"

namespace ddprun::membership {

// Each throws Error(kProtocol) where the text is no such message, or a value is out of range.
Join read_kept_join(std::string_view text);
WorkerFailure read_kept_failure(std::string_view text);
RendezvousMessage read_kept_message(std::string_view text);

}  // namespace ddprun::membership
