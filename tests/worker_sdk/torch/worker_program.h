// SPDX-License-Identifier: Apache-2.0
// The parts that the test programs of this folder share: checks that end the process, and the ways
// into the job and out of it.
#pragma once

#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>

#include "common/env_names.h"
#include "common/error.h"
#include "tests/worker_sdk/torch/forwarding_communicator.h"
#include "worker_sdk/core/session.h"
#include "worker_sdk/core/solo_communicator.h"

namespace ddprun::testing {

// Ends the process at once if the check fails, because unwinding would wait for the other ranks.
inline void expect(bool holds, const std::string& what) {
  if (holds) return;
  std::cerr << "does not hold: " << what << std::endl;
  std::exit(1);
}

inline void expect_contains(const std::string& text, const std::string& part) {
  expect(text.find(part) != std::string::npos, "\"" + text + "\" contains \"" + part + "\"");
}

// The message of the Error that `call` throws; empty: it throws none.
template <typename Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// Calls `run` with the host communicator of the job, or of one rank if there is no launcher. With
// LIKE_NCCL in the environment a LikeNccl is over it. `run` returns false if it doesn't know the
// mode. Returns the exit status: 0, 1 after an exception, 2 for an unknown mode.
template <typename Run>
int run_worker(const std::string& program, const std::string& mode, Run run) {
  try {
    std::unique_ptr<Session> session;
    std::unique_ptr<Communicator> communicator;
    if (std::getenv(env::kWorldSize)) {
      session = Session::from_env();
      communicator = session->make_communicator(BackendChoice::kHost);
    } else {
      communicator = make_solo_communicator();
    }
    LikeNccl like_nccl(*communicator);
    if (!run(std::getenv("LIKE_NCCL") ? like_nccl : *communicator)) {
      std::cerr << "unknown mode '" << mode << "'\n";
      return 2;
    }
    communicator->barrier();
    return 0;
  } catch (const std::exception& error) {
    std::cerr << program << ": " << error.what() << std::endl;
    return 1;
  }
}

}  // namespace ddprun::testing
