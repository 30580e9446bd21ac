// SPDX-License-Identifier: Apache-2.0
// Waiting for what other ranks put into the store.
#pragma once

#include <map>
#include <string>

#include "common/clock.h"
#include "rendezvous/store/store.h"

namespace ddprun::doctor {

// Throws Error(kTimeout).
std::string await_key(store::Store& store, const std::string& key, Deadline deadline);

// The values of those keys that are there at the deadline, or as soon as all are.
std::map<int, std::string> await_all(store::Store& store, const std::map<int, std::string>& keys,
                                     Deadline deadline);

}  // namespace ddprun::doctor
