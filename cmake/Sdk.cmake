# SPDX-License-Identifier: Apache-2.0
# Installs the files for other projects' find_package(ddprun) (docs/sdk.md): static libraries,
# ddprun-config.cmake, and the public headers under include/ddprun.
include(CMakePackageConfigHelpers)

# The list has all headers that a public header includes. The test project.find_package compiles each alone.
set(ddprun_public_headers
  common/clock.h
  common/endpoint.h
  common/error.h
  common/exit_codes.h
  common/progress_page.h
  rendezvous/store/store.h
  worker_sdk/core/backend_choice.h
  worker_sdk/core/checkpoint/safetensors.h
  worker_sdk/core/communicator.h
  worker_sdk/core/exchange.h
  worker_sdk/core/mesh.h
  worker_sdk/core/nccl_config.h
  worker_sdk/core/rank_threads.h
  worker_sdk/core/session.h
  worker_sdk/core/solo_communicator.h
  worker_sdk/core/spawn.h
  worker_sdk/core/tensor_view.h
  worker_sdk/core/worker_env.h
  worker_sdk/core/worker_progress.h
  worker_sdk/ddp/async_parameters.h
  worker_sdk/ddp/average_plan.h
  worker_sdk/ddp/bucket_plan.h
  worker_sdk/ddp/bucket_shards.h
  worker_sdk/ddp/comm_hook.h
  worker_sdk/ddp/distributed_sampler.h
  worker_sdk/ddp/flat_runs.h
  worker_sdk/ddp/hooks/compression.h
  worker_sdk/ddp/loader.h
  worker_sdk/ddp/lr_schedule.h
  worker_sdk/ddp/prefetcher.h
  worker_sdk/ddp/reducer.h
  worker_sdk/ddp/step_statistics.h
  worker_sdk/ddp/zero_stage.h
  worker_sdk/parallel/micro_batches.h
  worker_sdk/parallel/pipeline_schedule.h)
set(ddprun_public_torch_headers
  worker_sdk/torch/autocast.h
  worker_sdk/torch/cast_hook.h
  worker_sdk/torch/checkpoint.h
  worker_sdk/torch/current_stream.h
  worker_sdk/torch/distributed_data_parallel.h
  worker_sdk/torch/hook_state.h
  worker_sdk/torch/flat_optimizer.h
  worker_sdk/torch/grad_scaler.h
  worker_sdk/torch/gradient_clipping.h
  worker_sdk/torch/load_cuda.h
  worker_sdk/torch/model_averager.h
  worker_sdk/torch/named_tensor.h
  worker_sdk/torch/output_tensors.h
  worker_sdk/torch/parallel/average_gradients.h
  worker_sdk/torch/parallel/parallel_conv.h
  worker_sdk/torch/parallel/parallel_linear.h
  worker_sdk/torch/parallel/pipeline.h
  worker_sdk/torch/parallel/sharded_gradients.h
  worker_sdk/torch/parallel/sharded_layer.h
  worker_sdk/torch/parallel/sync_batch_norm.h
  worker_sdk/torch/parallel/tensor_parallel.h
  worker_sdk/torch/pinned_loader.h
  worker_sdk/torch/rng_state.h
  worker_sdk/torch/sharded_optimizer.h
  worker_sdk/torch/tensor_exchange.h
  worker_sdk/torch/update_rule.h)

set(ddprun_sdk_libraries common store checkpoint communicator core_host core_nccl core ddp parallel)
set(ddprun_sdk_headers ${ddprun_public_headers})
if(DDPRUN_TORCH_FOUND)
  list(APPEND ddprun_sdk_libraries torch torch_parallel)
  list(APPEND ddprun_sdk_headers ${ddprun_public_torch_headers})
endif()

# Sets `result` to a header's installed name: worker_sdk/core/session.h is installed as <ddprun/core/session.h>,
# rendezvous/store/store.h as <ddprun/store/store.h>. The installed copies' own includes have these names, too.
# In the source tree a header has one name, its path.
function(ddprun_installed_header header result)
  string(REGEX REPLACE "^(worker_sdk|rendezvous)/" "" header ${header})
  set(${result} ddprun/${header} PARENT_SCOPE)
endfunction()
set(ddprun_header_rule "#include \"(worker_sdk/|rendezvous/)?([a-z_/]+\\.h)\"")
foreach(header IN LISTS ddprun_sdk_headers)
  ddprun_installed_header(${header} installed)
  set(copy ${CMAKE_BINARY_DIR}/sdk/include/${installed})
  set_property(DIRECTORY ${CMAKE_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${header})
  file(READ ${CMAKE_SOURCE_DIR}/${header} text)
  string(REGEX REPLACE "${ddprun_header_rule}" "#include <ddprun/\\2>" text "${text}")
  file(CONFIGURE OUTPUT ${copy} CONTENT "${text}" @ONLY)
  cmake_path(GET installed PARENT_PATH folder)
  install(FILES ${copy} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/${folder} COMPONENT sdk)
endforeach()

set(ddprun_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/ddprun)
foreach(library IN LISTS ddprun_sdk_libraries)
  set_target_properties(ddprun_${library} PROPERTIES EXPORT_NAME ${library})
  target_include_directories(ddprun_${library} INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_compile_features(ddprun_${library} INTERFACE cxx_std_20)
  install(TARGETS ddprun_${library} EXPORT ddprun-targets
          ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT sdk)
endforeach()
install(EXPORT ddprun-targets NAMESPACE ddprun:: DESTINATION ${ddprun_package_dir} COMPONENT sdk)
configure_package_config_file(${CMAKE_SOURCE_DIR}/cmake/ddprun-config.cmake.in
  ${CMAKE_BINARY_DIR}/sdk/ddprun-config.cmake INSTALL_DESTINATION ${ddprun_package_dir})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/sdk/ddprun-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/sdk/ddprun-config.cmake
              ${CMAKE_BINARY_DIR}/sdk/ddprun-config-version.cmake
              ${CMAKE_SOURCE_DIR}/cmake/LibTorchTarget.cmake
        DESTINATION ${ddprun_package_dir} COMPONENT sdk)
