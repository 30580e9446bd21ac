// SPDX-License-Identifier: Apache-2.0
// The ledger as JSON, for GET /v1/jobs and for JobEnd. Pure.
#pragma once

#include <boost/json/object.hpp>
#include <cstddef>
#include <string>

#include "rendezvous/membership/ledger.h"

namespace ddprun::membership {

boost::json::object phase_seconds_object(const PhaseSeconds& seconds);
boost::json::object round_record_object(const RoundRecord& record);

// {"ettr":…,"seconds":{…},"rounds":[…]}, the sums of all rounds, and the last ones that fit in
// `max_bytes` (at least 1 KiB) with all that. "ettr" is null before anything is over.
std::string ledger_text(const Ledger& ledger, std::size_t max_bytes);

}  // namespace ddprun::membership
