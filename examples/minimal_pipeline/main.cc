// SPDX-License-Identifier: Apache-2.0
// The smallest pipeline: a net in as many stages as there are ranks, each batch in 8 parts. It
// learns how far points are from the origin.
//   ddprun --standalone --nproc_per_node=2 minimal_pipeline [STEPS]
#include <torch/torch.h>

#include <cstdlib>
#include <iostream>

#include <ddprun/core/session.h>
#include <ddprun/torch/parallel/pipeline.h>

int main(int argc, char** argv) {
  const int num_steps = argc > 1 ? std::atoi(argv[1]) : 200;
  const auto session = ddprun::Session::from_env();
  const auto communicator = session->make_communicator(ddprun::BackendChoice::kHost);
  const bool is_first = session->rank() == 0;
  const bool is_last = session->rank() == session->world_size() - 1;

  // This rank's layers.
  torch::nn::Sequential layers(torch::nn::Linear(is_first ? 2 : 32, 32), torch::nn::Tanh());
  if (is_last) layers->push_back(torch::nn::Linear(32, 1));

  ddprun::Pipeline pipeline([&](const torch::Tensor& x) { return layers->forward(x); },
                            *communicator, {.num_micro_batches = 8});
  torch::optim::Adam optimizer(layers->parameters(), 1e-2);
  torch::manual_seed(1);  // the same points on every rank: the first rank needs x, the last y
  torch::Tensor loss;
  for (int step = 0; step < num_steps; ++step) {
    const torch::Tensor x = torch::randn({64, 2});
    const torch::Tensor y = x.norm(2, {1}, true);
    optimizer.zero_grad();
    loss = pipeline.train_step(x, [&](const torch::Tensor& output, const ddprun::MicroBatch& part) {
      return torch::mse_loss(output, y.narrow(0, part.first, part.count));
    });
    optimizer.step();  // over this rank's parameters
  }
  if (is_last) std::cout << "stage " << pipeline.stage() << ": loss " << loss.item<float>() << "\n";
}
