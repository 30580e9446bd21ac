// SPDX-License-Identifier: Apache-2.0
// What ddprun leaves for the one who started it, torchrun's way: the first failure, in the file
// that its own TORCHELASTIC_ERROR_FILE names.
#pragma once

#include <boost/json/object.hpp>
#include <string>

#include "rendezvous/membership/messages.h"

namespace ddprun::launcher {

// What the worker's error file has beyond the fields that everybody's has: an ErrorHandler of the
// program's own may add some, anywhere. Empty where what came with the failure is no JSON object.
// Pure.
boost::json::object further_fields(const membership::WorkerFailure& failure);

// {"message": {"message": …, "extraInfo": {"py_callstack": …, "timestamp": …}, "errorCode": …}}
// and the further fields; empty where the worker left no traceback: torchrun then writes nothing,
// either. Pure.
std::string error_file_text(const membership::WorkerFailure& failure);

// Writes it to `path`. Returns what went wrong; empty: nothing.
std::string leave_error_file(const std::string& path, const membership::WorkerFailure& failure);

}  // namespace ddprun::launcher
