// SPDX-License-Identifier: Apache-2.0
// The flight recorder as a file (docs/flight-recorder.md has the format).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "worker_sdk/core/flight_recorder.h"
#include "worker_sdk/core/worker_env.h"

namespace ddprun {

// Beside the error file ("…/error.json" → "…/flight_recorder.json"), or "rank_3.json" in the
// directory that DDPRUN_FLIGHT_RECORDER_DIR names. Empty: nowhere.
std::string flight_recorder_file(const WorkerEnv& env);

// One JSON object. `failure`: why it is written; null: it was asked for. Times are CLOCK_MONOTONIC
// in the recorder, since 1970 here, by the clocks of now.
std::string flight_recorder_json(const FlightRecorder& recorder, const WorkerEnv& env,
                                 const OperationFailure* failure);

// Writes `text` beside `path` and renames it; the file is there whole or not at all. False, with
// one warning: it could not be, or the file system didn't answer within 2 s.
bool write_flight_recorder(const std::string& path, const std::string& text);

}  // namespace ddprun
